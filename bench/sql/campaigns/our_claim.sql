select job_id, item_ids
  from execution.claim_queued_jobs($1, $2)
 order by job_id
