"""What to do about a rule that failed, and about the whole run: a line each, for people who did not write the rules."""

from __future__ import annotations

_FIRST = "until then no importance correction (TIS, rejection) is legitimate"
REMEDIES = {
    "integrity": "compare the rows named here with what the job logged; record or import those steps again",
    "non-finite": "look at the rows named here in the engine's own output; where top-p or top-k was on and the -inf is "
    "the trainer's, say so in manifest.json (sampling.top_p, sampling.top_k)",
    "placeholder": "log a missing log-prob as null, and leave what the engine did not sample out of the loss mask",
    "storage-dtype": "log log-probs as float32; trust no difference below the rounding named here",
    "units": "convert that side to natural logarithms before it is logged",
    "off-by-one": "shift one column until each log-prob stands beside the token that it scores (the logits at i - 1 "
    "score token i); test the loss mask and the advantages for the same shift",
    "inserted-token": "score the token ids that the engine returned; do not decode and tokenise again",
    "different-inputs": "give both sides the same ids in the same row order: compare BOS, chat template, images and "
    "truncation of the rows named here",
    "temperature-one-sided": "let both sides use one temperature (vLLM: logprobs_mode processed_logprobs; trainer: "
    f"divide the logits by T); {_FIRST}",
    "logprob-divided-by-temperature": f"divide the logits by T before the softmax, not log-probs after it; {_FIRST}",
    "top-p-renormalisation": "sample with top_p 1.0, or log raw log-probs, or let the trainer renormalise over the "
    f"same tokens; {_FIRST}",
    "top-k-renormalisation": "sample without top_k and min_p, or log raw log-probs, or let the trainer renormalise "
    f"over the same tokens; {_FIRST}",
    "penalties": "turn penalties, logit bias and grammars off in the sampler, or log log-probs from before them; "
    f"compare the lm_head bias of both sides; {_FIRST}",
    "estimator-artefact": "do not trust the framework's own figure named here; timscope's come from the tokens",
    "outlier-sequences": "replay the prompts named here and compare their template, images and length on both sides; a "
    "mask would only hide them",
    "zero-filled-old": "let the trainer recompute old log-probs, or log those of the loss as well (loss_logprob)",
    "old-copies-rollout": "in bypass mode log the log-probs of the loss as well (loss_logprob), or let the trainer "
    "recompute old_logprob",
    "truncated-dump": "copy or import the missing steps again; figures of the rest stand",
}

# What to do next about the whole run.
NEXT = "timscope diagnose {run}: how large the mismatch is and which side it comes from"
FIX_IN_ORDER = "fix what FAILED from the top, then check again: one fault can hide the next"
NOT_A_LOGPROB = (
    "check what the engine logs (raw or processed log-probs, of the sampled token, in nats), and log the rollouts "
    f"before any filter by reward; {_FIRST}"
)
NO_COLUMNS = (
    "record the run with a hook (timscope.attach), or dump the log-probs of both sides with token ids and loss mask"
)
NO_PAIR = "log both sides for the same tokens, and a loss mask that is true on them"
