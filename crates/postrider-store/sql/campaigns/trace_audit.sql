-- The log of runs, and of their campaign when that was asked for; of one send job or one item, what concerns it and what is
-- above it. When there are too many lines, the newest.
select line.id as "id!",
       line.at as "at!: jiff_sqlx::Timestamp",
       line.actor as "actor!",
       line.action as "action!",
       line.note,
       line.run_id,
       line.job_id,
       line.outbox_id,
       line.total as "total!"
  from (select line.*, count(*) over () as total
          from execution.campaign_audit_log as line
         where line.tenant_id = $1
           and (line.run_id = any ($2) or line.campaign_id = $3 and line.run_id is null)
           and ($4::uuid is null or line.job_id is null or line.job_id = $4)
           and ($5::uuid is null or line.outbox_id is null or line.outbox_id = $5)
         order by line.id desc
         limit $6) as line
 order by line.id
