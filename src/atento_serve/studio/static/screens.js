// The screens, a row each, in the order of the rail. `name` is the backend's; its texts are `screen.NAME` and `about.NAME`.
import heads from "./screens/heads.js";
import models from "./screens/models.js";

export const SCREENS = [models, heads];
