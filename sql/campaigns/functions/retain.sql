-- Retention of runs: freezes the certificate of an old run, and then deletes its jobs and items in small steps.

create or replace function execution.tenants_with_old_runs(p_before timestamptz)
returns table (tenant_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select
                     from execution.campaign_runs as run
                          left join execution.run_archives as archive
                                 on archive.tenant_id = run.tenant_id
                                and archive.run_id = run.id
                    where run.tenant_id = tenant.id
                      and run.created_at < p_before
                      and run.finished_at < p_before
                      and archive.removed_at is null)
$$;
comment on function execution.tenants_with_old_runs(timestamptz) is
    'Returns the tenants with runs that ended before p_before and still have their jobs and items. Locks nothing.';
revoke all on function execution.tenants_with_old_runs(timestamptz) from public;
grant execute on function execution.tenants_with_old_runs(timestamptz) to postrider_worker;

-- Only a dead job may have items in doubt after the end of its run, so the items of the other jobs are not read.
create or replace function execution.old_runs(p_tenant_id uuid, p_before timestamptz)
returns table (run_id uuid, is_archived boolean)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select run.id, archive.run_id is not null
          from execution.campaign_runs as run
               left join execution.run_archives as archive on archive.tenant_id = p_tenant_id and archive.run_id = run.id
         where run.tenant_id = p_tenant_id
           and run.created_at < p_before
           and run.finished_at < p_before
           and archive.removed_at is null
           and not exists (select
                             from execution.job_queue as job
                                  join execution.channel_outbox as item
                                    on item.tenant_id = p_tenant_id
                                   and item.job_id = job.id
                                   and item.status = 'queued'
                            where job.tenant_id = p_tenant_id
                              and job.run_id = run.id
                              and job.status = 'dead')
         order by run.created_at, run.id;
end
$$;
comment on function execution.old_runs(uuid, timestamptz) is
    'Returns the runs of the tenant that ended before p_before and still have their jobs and items, oldest first, without those '
    'that have an item in doubt.';
revoke all on function execution.old_runs(uuid, timestamptz) from public;
grant execute on function execution.old_runs(uuid, timestamptz) to postrider_worker;

create or replace function execution.archive_run(
    p_tenant_id uuid, p_run_id uuid, p_before timestamptz, p_exported_to text, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_run record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_before is null or p_before > now() - interval '1 day' then
        raise exception 'p_before must be at least a day ago' using errcode = 'invalid_parameter_value';
    end if;
    select run.*
      into v_run
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_run_id
       and run.finished_at < p_before;
    if not found then
        return false;
    end if;
    insert into execution.run_archives
           (tenant_id, run_id, exported_to, jobs_completed, jobs_dead, sent, called, posted, failed, skipped, missing)
    select p_tenant_id, p_run_id, p_exported_to,
           (select count(*) from execution.job_queue as job
             where job.tenant_id = p_tenant_id and job.run_id = p_run_id and job.status = 'completed'),
           (select count(*) from execution.job_queue as job
             where job.tenant_id = p_tenant_id and job.run_id = p_run_id and job.status = 'dead'),
           launch.sent, launch.called, launch.posted, launch.failed, launch.skipped, launch.missing
      from execution.verify_launch(p_tenant_id, p_run_id) as launch
        on conflict do nothing;
    if not found then
        return false;
    end if;
    perform execution.audit(p_tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor, 'run.archived',
                            case when p_exported_to is null then 'not exported' else 'exported to ' || p_exported_to end);
    return true;
end
$$;
comment on function execution.archive_run(uuid, uuid, timestamptz, text, text) is
    'Freezes the certificate of a run that ended before p_before. From then on the run gets no jobs, and its rows may be '
    'deleted. Returns false if the run is archived already or has not ended before p_before.';
revoke all on function execution.archive_run(uuid, uuid, timestamptz, text, text) from public;
grant execute on function execution.archive_run(uuid, uuid, timestamptz, text, text) to postrider_worker;

-- Jobs come first: as long as a job exists, the keys of its items must.
create or replace function execution.prune_run(p_tenant_id uuid, p_run_id uuid, p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_now constant timestamptz := now();
    v_ids uuid[];
    v_keys text[];
    v_removed bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_limit is null or p_limit < 10 then
        raise exception 'p_limit must be at least 10' using errcode = 'invalid_parameter_value';
    end if;
    if not exists (select from execution.run_archives as archive where archive.tenant_id = p_tenant_id and archive.run_id = p_run_id) then
        raise exception 'run % is not archived', p_run_id using errcode = 'invalid_parameter_value';
    end if;
    -- A job has the ids of up to 10000 items, so fewer jobs than items fit into a step.
    delete from execution.job_queue as job
     where job.tenant_id = p_tenant_id
       and job.id in (select old.id
                        from execution.job_queue as old
                       where old.tenant_id = p_tenant_id
                         and old.run_id = p_run_id
                       limit p_limit / 10
                         for update skip locked);
    get diagnostics v_removed = row_count;
    if v_removed > 0 then
        return v_removed;
    end if;
    select coalesce(array_agg(old.id), '{}'), coalesce(array_agg(old.idempotency_key), '{}')
      into v_ids, v_keys
      from (select item.id, item.idempotency_key
              from execution.channel_outbox as item
             where item.tenant_id = p_tenant_id
               and item.run_id = p_run_id
             limit p_limit
               for update skip locked) as old;
    -- A single message keeps its key and its end, and nothing that it says.
    update execution.messages as message
       set ended_as = item.status,
           ended_at = item.finalized_at,
           recipient = null,
           content = null,
           variables = '{}'
      from execution.channel_outbox as item
     where item.tenant_id = p_tenant_id
       and item.id = any (v_ids)
       and message.tenant_id = p_tenant_id
       and message.id = item.recipient_id
       and message.run_id = p_run_id;
    delete from execution.provider_callbacks as callback
     using tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and callback.tenant_id = p_tenant_id
       and callback.account_id = account.id
       and callback.idempotency_key = any (v_keys);
    delete from execution.doubts as doubt
     where doubt.tenant_id = p_tenant_id
       and doubt.outbox_id = any (v_ids);
    delete from execution.channel_outbox as item
     where item.tenant_id = p_tenant_id
       and item.id = any (v_ids);
    get diagnostics v_removed = row_count;
    if v_removed = 0
       and not exists (select from execution.channel_outbox as item where item.tenant_id = p_tenant_id and item.run_id = p_run_id)
       and not exists (select from execution.job_queue as job where job.tenant_id = p_tenant_id and job.run_id = p_run_id)
    then
        update execution.run_archives as archive
           set removed_at = v_now
         where archive.tenant_id = p_tenant_id
           and archive.run_id = p_run_id
           and archive.removed_at is null;
    end if;
    return v_removed;
end
$$;
comment on function execution.prune_run(uuid, uuid, integer) is
    'Deletes jobs, and when there are none left up to p_limit items with their callbacks, of an archived run. Returns the number '
    'of deleted jobs or items; 0 means that none is left.';
revoke all on function execution.prune_run(uuid, uuid, integer) from public;
grant execute on function execution.prune_run(uuid, uuid, integer) to postrider_worker;
