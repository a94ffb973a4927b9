-- The end of phases and the automatic start of the next phase.

create or replace function execution.end_phase(p_tenant_id uuid, p_phase_id uuid, p_actor text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_runs constant uuid[] := execution.runs_since_all(p_tenant_id, p_phase_id);
    v_phase record;
    v_run record;
    v_items record;
    v_all integer;
begin
    select phase.campaign_id, phase.failure_tolerance
      into strict v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id;
    select run.id, run.status
      into strict v_run
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = v_runs[1];
    select run.intended
      into strict v_all
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = v_runs[cardinality(v_runs)];
    -- The counters of the send jobs are enough for a single run without items in doubt. After a retry, or if a send job left
    -- items in doubt that may be settled by now, count the items.
    select coalesce(sum(job.succeeded + job.skipped), 0) as went_well,
           coalesce(sum(job.failed), 0) as failed
      into v_items
      from (select ended.succeeded, ended.skipped, ended.failed
              from execution.job_queue as ended
             where ended.tenant_id = p_tenant_id
               and ended.run_id = v_run.id
             order by ended.position) as job; -- in the order of an index, as in finish_run
    if cardinality(v_runs) > 1 or v_items.went_well + v_items.failed < v_all then
        select count(*) filter (where lead.went_well) as went_well,
               count(*) filter (where not lead.went_well and not lead.is_open) as failed
          into v_items
          from (select bool_or(item.status in ('sent', 'called', 'posted')
                               or item.status = 'skipped'
                                  and not execution.was_canceled(item.status, item.error, item.reserved_by)) as went_well,
                       bool_or(item.status = 'queued') as is_open
                  from execution.channel_outbox as item
                 where item.tenant_id = p_tenant_id
                   and item.run_id = any (v_runs)
                 group by item.recipient_id) as lead;
    end if;
    perform execution.note_counted_progress(p_tenant_id, v_phase.campaign_id, p_phase_id,
                                            100.0 * (v_items.went_well + v_items.failed) / v_all,
                                            execution.run_counts(p_tenant_id, v_run.id));
    perform execution.enter_phase_state(
        p_tenant_id, v_phase.campaign_id, p_phase_id,
        case
            when v_items.went_well > 0 and v_all - v_items.went_well <= v_phase.failure_tolerance * v_all then 'complete'
            else 'fail'
        end,
        v_run.id, p_actor,
        jsonb_build_object('runStatus', v_run.status, 'items', v_all, 'succeededOrSkipped', v_items.went_well,
                           'failed', v_items.failed, 'open', v_all - v_items.went_well - v_items.failed));
end
$$;
comment on function execution.end_phase(uuid, uuid, text) is
    'Ends a phase whose newest run has ended: completed if at most the tolerated share of the audience did not get '
    'the message in the runs since the whole audience was addressed, else failed. An item that was not tried, was canceled or '
    'is in doubt counts as failed. The caller has locked the campaign and the phase.';
revoke all on function execution.end_phase(uuid, uuid, text) from public;

create or replace function execution.tenants_with_due_phases(p_limit integer)
returns table (tenant_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    -- A random order, so that a tenant whose phase always fails does not block the others.
    select due.tenant_id
      from (select distinct phase.tenant_id
              from execution.campaign_phases as phase
             where phase.due is not null
               -- The holders of locked send jobs end them.
               and (phase.due <> 'cancel'
                    or exists (select
                                 from execution.job_queue as job
                                where job.tenant_id = phase.tenant_id
                                  and job.run_id = phase.canceled_run_id
                                  and job.status in ('queued', 'failed')))) as due
     order by random()
     limit p_limit
$$;
comment on function execution.tenants_with_due_phases(integer) is
    'Chooses up to p_limit tenants that have a phase with something due, in random order. Locks nothing; tend_phase then '
    'processes one phase of a tenant.';
revoke all on function execution.tenants_with_due_phases(integer) from public;
grant execute on function execution.tenants_with_due_phases(integer) to postrider_worker;

create or replace function execution.end_canceled_jobs(
    p_tenant_id uuid, p_run_id uuid, p_actor text, p_limit integer default 20)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_now constant timestamptz := now();
    v_ids uuid[];
    v_id uuid;
    v_run record;
begin
    -- Lock all send jobs before the first one ends, because the end of the run locks it: workers lock in the same order.
    v_ids := array(
        select job.id
          from execution.job_queue as job
         where job.tenant_id = p_tenant_id
           and job.run_id = p_run_id
           and job.status in ('queued', 'failed')
         order by job.run_after, job.id
         limit p_limit
           for update skip locked);
    if cardinality(v_ids) = 0 then
        return 0;
    end if;
    update execution.campaign_runs as run
       set status = 'running',
           started_at = v_now
     where run.tenant_id = p_tenant_id
       and run.id = p_run_id
       and run.status = 'queued'
 returning run.campaign_id, run.phase_id
      into v_run;
    if found then
        perform execution.audit(p_tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor, 'run.running', null);
    end if;
    foreach v_id in array v_ids loop
        update execution.job_queue as job
           set status = 'queued'
         where job.tenant_id = p_tenant_id
           and job.id = v_id
           and job.status = 'failed';
        -- A send job ends locked. This is no attempt, so none is counted.
        update execution.job_queue as job
           set status = 'locked',
               locked_by = p_actor,
               locked_at = v_now,
               waits_for = null
         where job.tenant_id = p_tenant_id
           and job.id = v_id;
        perform execution.end_attempt(p_tenant_id, v_id, p_actor, interval '0', null);
    end loop;
    return cardinality(v_ids);
end
$$;
comment on function execution.end_canceled_jobs(uuid, uuid, text, integer) is
    'Ends up to p_limit send jobs of a canceled run that no worker holds, and skips their items that were not tried. Returns '
    'their number. The end of the last send job ends the run.';
revoke all on function execution.end_canceled_jobs(uuid, uuid, text, integer) from public;

create or replace function execution.tend_phase(p_tenant_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_phase record;
    v_next record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Choose a random one, so that a phase that always fails does not block the others.
    select phase.campaign_id, phase.id, phase.due, phase.canceled_run_id
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.due is not null
       and (phase.due <> 'cancel'
            or exists (select
                         from execution.job_queue as job
                        where job.tenant_id = p_tenant_id
                          and job.run_id = phase.canceled_run_id
                          and job.status in ('queued', 'failed')))
     order by random()
     limit 1;
    if not found then
        return false;
    end if;
    if v_phase.due = 'cancel' then
        -- Not under the lock of the campaign, which the end of the run takes last.
        return execution.end_canceled_jobs(p_tenant_id, v_phase.canceled_run_id, p_actor) > 0;
    end if;
    perform
       from execution.campaigns as campaign
      where campaign.tenant_id = p_tenant_id
        and campaign.id = v_phase.campaign_id
        for no key update skip locked;
    if not found then
        return false;
    end if;
    select phase.*
      into strict v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = v_phase.id
       for no key update;
    if coalesce(v_phase.due, 'cancel') = 'cancel' then
        return true;
    end if;
    update execution.campaign_phases set due = null where tenant_id = p_tenant_id and id = v_phase.id;
    if v_phase.due = 'end' then
        if v_phase.status = 'in_progress' then
            perform execution.end_phase(p_tenant_id, v_phase.id, p_actor);
        end if;
        return true;
    end if;
    select phase.id, phase.phase, phase.status
      into v_next
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = v_phase.campaign_id
       and phase.position > v_phase.position
     order by phase.position
     limit 1
       for no key update;
    if not found or v_next.status <> 'not_started' then
        return true;
    end if;
    begin
        perform execution.start_phase(p_tenant_id, v_phase.campaign_id, v_next.id, gen_random_uuid(), 500, p_actor);
    exception
        -- Record an error of the phase. A database error is raised, and the caller retries.
        when invalid_parameter_value or no_data_found or check_violation then
            update execution.campaigns
               set not_advanced = left(v_next.phase || ': ' || sqlerrm, 2000)
             where tenant_id = p_tenant_id
               and id = v_phase.campaign_id;
            perform execution.audit(p_tenant_id, v_phase.campaign_id, v_next.id, null, null, null, p_actor,
                                    'phase.not_advanced', sqlerrm);
    end;
    return true;
end
$$;
comment on function execution.tend_phase(uuid, text) is
    'Processes one phase of a tenant that has something due: ends it, starts the next phase of a campaign with auto_advance, or '
    'ends send jobs of a canceled run. Returns false if nothing is due or another transaction has locked the campaign. If the next phase cannot be '
    'started, the campaign records the reason in not_advanced.';
revoke all on function execution.tend_phase(uuid, text) from public;
grant execute on function execution.tend_phase(uuid, text) to postrider_worker;
