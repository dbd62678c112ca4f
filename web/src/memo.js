/** memo: a component that is drawn again only when its properties say so. */
import { Component, h } from "preact";

export function memo(draw, same) {
  return class extends Component {
    shouldComponentUpdate(next) {
      return !same(this.props, next);
    }

    render(properties) {
      return h(draw, properties);
    }
  };
}
