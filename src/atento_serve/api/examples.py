"""Example bodies of routes whose fields alone do not show what they take, for the OpenAPI document and its page."""

from atento_serve.http.service import Service

_TEXT = "The white cat sleeps."
RERANK: dict[str, object] = {"query": "Who sleeps?", "documents": [_TEXT, "It rains."]}
FIND: dict[str, object] = {"query": "Who sleeps?", "top": 3, "by": "both"}
ZERO_SHOT: dict[str, object] = {"inputs": _TEXT, "parameters": {"candidate_labels": ["animals", "weather"]}}


def payload_example(service: Service, verb: str) -> dict[str, object]:
    """A payload of Hugging Face for what a verb does."""
    if verb == "answer":
        return {"inputs": {"question": "Who sleeps?", "context": _TEXT}}
    if verb == "similarity":
        return {"inputs": {"source_sentence": _TEXT, "sentences": ["A kitten is asleep.", "It rains."]}}
    if verb == "fill":
        tokens = (service.describe(name).mask_token for name in service.models)
        return {"inputs": f"The white {next(filter(None, tokens), '[MASK]')} sleeps."}
    return {"inputs": _TEXT}
