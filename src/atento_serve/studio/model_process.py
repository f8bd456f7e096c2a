"""The process that holds Studio's models, and computes what its screens ask."""

import torch

from atento_serve.engine.verbs import TooLong
from atento_serve.http.errors import too_long
from atento_serve.settings import Limits, StudioSettings
from atento_serve.studio.process_loop import Answer, Answered, answer_all
from atento_serve.studio.screen_table import answer
from atento_serve.studio.shelf import Shelf


def _begin(settings: StudioSettings, limits: Limits) -> Answer:
    threads = next((one.threads for one in settings.models.values() if one.threads), None)
    if threads:
        torch.set_num_threads(threads)
    shelf = Shelf(settings.models, limits, settings.cache_bytes)

    def answered(function: str, arguments: object) -> Answered:
        try:
            with torch.no_grad():  # not inference mode: a screen may ask for gradients
                return answer(shelf, function, arguments)
        except TooLong as error:
            raise too_long(str(error)) from None
        except torch.OutOfMemoryError:
            raise MemoryError from None

    return answered


if __name__ == "__main__":
    answer_all(_begin)
