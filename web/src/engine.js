/** engineText: what a pipeline runs on, in words; nothing for the server itself. */
export function engineText({ engine, spark_master: master }) {
  if (engine !== "spark") return "";
  return master ? `on Spark (${master})` : "on Spark";
}
