select claimed.tenant_id, claimed.job_id, claimed.item_ids
  from execution.tenants_with_due_jobs($2) as due
       cross join lateral execution.claim_queued_jobs(due.tenant_id, $1, due.jobs) as claimed
 order by claimed.tenant_id, claimed.job_id
