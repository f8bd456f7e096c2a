// The screens by what a person wants, in the order of the rail. `name` is the backend's; its texts are `screen.NAME` and `about.NAME`.
import answer from "./screens/answer.js";
import beam from "./screens/beam.js";
import compare from "./screens/compare.js";
import fill from "./screens/fill.js";
import heads from "./screens/heads.js";
import inside from "./screens/inside.js";
import labels from "./screens/labels.js";
import masks from "./screens/masks.js";
import models from "./screens/models.js";
import next from "./screens/next.js";
import one from "./screens/one_sentence.js";
import positions from "./screens/positions.js";
import tokens from "./screens/tokens.js";
import tour from "./screens/tour.js";
import training from "./screens/training.js";
import translate from "./screens/translate.js";
import why from "./screens/why.js";

export const GROUPS = {
  follow: [one, tokens, positions, masks, heads, inside, tour],
  write: [translate, next, beam, fill],
  explain: [why, labels, answer],
  compare: [models, compare, training],
};
export const SCREENS = Object.values(GROUPS).flat();
