"""Plan: what one command's sandbox looks like, worked out from the policy and from facts about the host. Pure.

    needs  ->  facts (answered by `host/`)  ->  view (mounts) + environment  ->  Plan

Nothing here touches the file system: `needs` lists the questions, `host.fact_source` answers them, the rest computes.
"""
