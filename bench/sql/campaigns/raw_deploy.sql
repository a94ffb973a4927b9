insert into raw.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, run_after, item_ids)
select gen_random_uuid(), $1, $2, $3, part + 1, 'email_send_batch', now(), array_agg(lead_id order by lead_id)
  from (select lead_id, (row_number() over (order by lead_id) - 1) / $4 as part
          from execution.lead_list_members
         where tenant_id = $1
           and list_id = $5) as member
 group by part
