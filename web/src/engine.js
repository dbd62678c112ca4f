/** engineText: what a pipeline runs on, in words; nothing for the server's own process. */
export function engineText({ engine, spark_master: master, process }) {
  if (engine !== "spark") return process ? `in process ${process}` : "";
  return master ? `on Spark (${master})` : "on Spark";
}
