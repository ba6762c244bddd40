"""What makes a stored study the study of a request: a name alone does not."""

import json
from dataclasses import asdict

import optuna

from autotune.errors import StudyError
from autotune.measure.difference import differences
from autotune.request import TuneRequest
from autotune_trials.spec import model_from


def check_identity(study: optuna.Study, request: TuneRequest) -> None:
    """Refuse a stored study of another request; a new one becomes the request's. Compared as text, as JSON made it.

    Raises:
        StudyError: it holds another request; the first field that differs is named.
    """
    mine = json.loads(json.dumps(request.identity()))
    stored = study.user_attrs.get("identity")
    if stored is None:
        study.set_user_attr("identity", mine)
        return
    # A stored shape may be older than some of today's fields.
    stored = {**stored, "model": asdict(model_from(stored["model"]))}
    different = list(differences(stored, mine))
    if different:
        name, was, now = different[0]
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        raise StudyError(
            f"study {request.study!r} holds {name}={was!r}, but this request has {now!r}{more}",
            hint="choose another name with --study, or ask for what the study holds",
        )
