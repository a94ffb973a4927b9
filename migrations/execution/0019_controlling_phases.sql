-- Phases are started, paused, resumed, retried, rerun and ended by one function.
-- Safe beside running workers: functions are replaced whole.

-- The runs of a phase since it was last sent to everybody, the newest first.
create function execution.runs_since_all(p_tenant_id uuid, p_phase_id uuid)
returns uuid[]
language sql
stable
set search_path = pg_catalog, pg_temp
return array(
    select run.id
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.phase_id = p_phase_id
       and run.number >= (select max(whole.number)
                            from execution.campaign_runs as whole
                           where whole.tenant_id = p_tenant_id
                             and whole.phase_id = p_phase_id
                             and whole.cause <> 'retry')
     order by run.number desc);

-- Makes a run of a delivery: of the whole audience, or, for a retry, of the items that have failed for certain. Null when there are none.
create function execution.create_run(
    p_tenant_id uuid, p_phase_id uuid, p_run_id uuid, p_cause text, p_job_size integer, p_actor text)
returns uuid
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_phase record;
    v_audience uuid[];
    v_members bigint;
begin
    if p_job_size is null or p_job_size not between 1 and 10000 then
        raise exception 'a job has between 1 and 10000 items, not %', coalesce(p_job_size::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    select phase.*, asset.version as asset_version, account.provider
      into strict v_phase
      from execution.campaign_phases as phase
           join execution.assets as asset
             on asset.tenant_id = phase.tenant_id and asset.id = phase.asset_id
           join tenancy.provider_accounts as account
             on account.tenant_id = phase.tenant_id and account.id = phase.provider_account_id
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id;

    -- The audience, in a fixed order. Of several leads with one address the first is addressed: nobody gets the same
    -- message twice because a list holds them twice. A social phase without a list is one post.
    if p_cause = 'retry' then
        -- Whoever got it in any of these runs, or may have, is not among them.
        select array_agg(failed.recipient_id order by failed.recipient_id), count(*)
          into v_audience, v_members
          from (select item.recipient_id
                  from execution.channel_outbox as item
                 where item.run_id = any (execution.runs_since_all(p_tenant_id, p_phase_id))
                 group by item.recipient_id
                having bool_and(item.status = 'failed')) as failed;
        if v_members = 0 then
            return null;
        end if;
    elsif v_phase.list_id is null then
        v_audience := array[v_phase.asset_id];
        v_members := 1;
    else
        select array_agg(audience.id order by audience.id) filter (where audience.is_first), count(*)
          into v_audience, v_members
          from (select lead.id,
                       case v_phase.channel
                           when 'email' then lead.email is null
                                or row_number() over (partition by lower(lead.email) order by lead.id) = 1
                           when 'voice' then lead.phone is null
                                or row_number() over (partition by lead.phone order by lead.id) = 1
                           else true
                       end as is_first
                  from execution.lead_list_members as member
                       join execution.leads as lead
                         on lead.tenant_id = member.tenant_id and lead.id = member.lead_id
                 where member.tenant_id = p_tenant_id
                   and member.list_id = v_phase.list_id) as audience;
    end if;
    if v_members = 0 then
        raise exception 'the list of phase `%` is empty', v_phase.phase
            using errcode = 'invalid_parameter_value', hint = 'Import leads with `postrider campaign import`.';
    end if;

    insert into execution.campaign_runs
           (id, tenant_id, workspace_id, campaign_id, phase_id, channel, asset_id, provider_account_id, provider,
            failover_account_id, scheduled_for, quiet_time, key_part, intended, same_address, number, cause, correlation_id)
    values (p_run_id, p_tenant_id, v_phase.workspace_id, v_phase.campaign_id, v_phase.id, v_phase.channel, v_phase.asset_id,
            v_phase.provider_account_id, v_phase.provider, v_phase.failover_account_id, v_phase.scheduled_for, v_phase.quiet_time,
            case v_phase.channel
                when 'email' then v_phase.asset_id::text
                when 'voice' then v_phase.asset_version::text
                else 'social'
            end,
            cardinality(v_audience), v_members - cardinality(v_audience),
            (select coalesce(max(run.number), 0) + 1
               from execution.campaign_runs as run
              where run.tenant_id = p_tenant_id
                and run.phase_id = p_phase_id),
            p_cause, gen_random_uuid());

    insert into execution.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, run_after, item_ids)
    select gen_random_uuid(), p_tenant_id, v_phase.workspace_id, p_run_id, part + 1,
           case v_phase.channel
               when 'email' then 'email_send_batch'
               when 'voice' then 'voice_call_batch'
               else 'social_post_batch'
           end,
           coalesce(v_phase.scheduled_for, now()),
           v_audience[part * p_job_size + 1 : (part + 1) * p_job_size]
      from generate_series(0, (cardinality(v_audience) - 1) / p_job_size) as part;

    -- Looked for first: an insert alone would wait for a worker that is just noting this tenant's turn.
    insert into execution.turns (tenant_id)
    select p_tenant_id
     where not exists (select from execution.turns where tenant_id = p_tenant_id)
        on conflict do nothing;
    perform execution.audit(p_tenant_id, v_phase.campaign_id, v_phase.id, p_run_id, null, null, p_actor, 'run.deployed',
                            cardinality(v_audience) || ' items');
    return p_run_id;
end
$$;

-- Starts a phase that has not begun: one run of its whole audience, or, where another service does it, nothing but the state.
create function execution.start_phase(
    p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_run_id uuid, p_job_size integer, p_actor text,
    p_reason text default null)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run_id uuid;
    v_items integer;
begin
    if exists (select from execution.campaign_phases
                where tenant_id = p_tenant_id and id = p_phase_id and kind = 'delivery')
    then
        v_run_id := execution.create_run(p_tenant_id, p_phase_id, p_run_id, 'start', p_job_size, p_actor);
        select run.intended into v_items from execution.campaign_runs as run where run.id = v_run_id;
    end if;
    -- Somebody has started it: whatever was to be started by itself is settled.
    update execution.campaigns
       set not_advanced = null
     where tenant_id = p_tenant_id
       and id = p_campaign_id
       and not_advanced is not null;
    return execution.enter_phase_state(p_tenant_id, p_campaign_id, p_phase_id, 'start', v_run_id, p_actor,
                                       jsonb_strip_nulls(jsonb_build_object('items', v_items, 'reason', p_reason)));
end
$$;

-- Deploys a phase, or without a name the one that is next, and answers with its run. A phase that is under way has one already.
create or replace function execution.deploy_campaign(
    p_campaign_id uuid,
    p_phase text default null,
    p_actor text default null,
    p_run_id uuid default null,
    p_job_size integer default 500)
returns uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_actor constant text := coalesce(nullif(btrim(p_actor), ''), session_user::text);
    v_run_id constant uuid := coalesce(p_run_id, gen_random_uuid());
    v_phase record;
begin
    -- The lock makes one run of two deployments at once.
    perform
       from execution.campaigns
      where tenant_id = v_tenant_id
        and id = p_campaign_id
        for no key update;
    if not found then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;
    select phase.*
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = v_tenant_id
       and phase.campaign_id = p_campaign_id
       and (phase.phase = p_phase
            -- Without a name: the one under way, or else the first that was not started.
            or p_phase is null
               and phase.position = (select candidate.position
                                       from execution.campaign_phases as candidate
                                      where candidate.tenant_id = v_tenant_id
                                        and candidate.campaign_id = p_campaign_id
                                        and candidate.status in ('in_progress', 'paused', 'not_started')
                                      order by candidate.status = 'not_started', candidate.position
                                      limit 1))
       for update of phase;
    if not found then
        if p_phase is null then
            raise exception 'every phase of the campaign was deployed already'
                using errcode = 'invalid_parameter_value',
                      hint = '`postrider campaign status` shows how they stand; `rerun` sends a phase again.';
        end if;
        raise exception 'the campaign has no phase `%`', p_phase
            using errcode = 'no_data_found',
                  hint = (select 'It has: ' || string_agg(phase.phase, ', ' order by phase.position) || '.'
                            from execution.campaign_phases as phase
                           where phase.tenant_id = v_tenant_id and phase.campaign_id = p_campaign_id);
    end if;
    if v_phase.kind <> 'delivery' then
        raise exception 'phase `%` is done by another service and is not deployed', v_phase.phase
            using errcode = 'invalid_parameter_value', hint = 'Deploy a phase that is a delivery, or start this one.';
    end if;
    if v_phase.status in ('in_progress', 'paused') then
        return (select run.id
                  from execution.campaign_runs as run
                 where run.tenant_id = v_tenant_id
                   and run.phase_id = v_phase.id
                 order by run.number desc
                 limit 1);
    end if;
    if v_phase.status <> 'not_started' then
        raise exception 'phase `%` is % and is not deployed twice', v_phase.phase, v_phase.status
            using errcode = 'invalid_parameter_value',
                  hint = case v_phase.status
                             when 'failed' then '`retry` sends what failed.'
                             else '`rerun` sends it to everybody again.'
                         end;
    end if;
    perform execution.start_phase(v_tenant_id, p_campaign_id, v_phase.id, v_run_id, p_job_size, v_actor);
    return v_run_id;
end
$$;

-- Ends a phase whose newest run has ended: completed if all but a tolerated share of everybody got the message, in whichever of
-- the runs since everybody was addressed. What nobody tried, or nobody knows about, is no better than what failed. The caller has
-- locked campaign and phase.
create function execution.end_phase(p_tenant_id uuid, p_phase_id uuid, p_actor text)
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
    select run.id, run.status into strict v_run from execution.campaign_runs as run where run.id = v_runs[1];
    select run.intended into strict v_all from execution.campaign_runs as run where run.id = v_runs[cardinality(v_runs)];
    -- The jobs have counted. That is not enough after a retry, nor if they left items in doubt, which may have been settled since.
    select coalesce(sum(job.succeeded + job.skipped), 0) as went_well,
           coalesce(sum(job.failed), 0) as failed
      into v_items
      from execution.job_queue as job
     where job.tenant_id = p_tenant_id
       and job.run_id = v_run.id;
    if cardinality(v_runs) > 1 or v_items.went_well + v_items.failed < v_all then
        select count(*) filter (where lead.went_well) as went_well,
               count(*) filter (where not lead.went_well and not lead.is_open) as failed
          into v_items
          from (select bool_or(item.status in ('sent', 'called', 'posted', 'skipped')) as went_well,
                       bool_or(item.status = 'queued') as is_open
                  from execution.channel_outbox as item
                 where item.run_id = any (v_runs)
                 group by item.recipient_id) as lead;
    end if;
    perform execution.note_progress_of(p_tenant_id, v_phase.campaign_id, p_phase_id,
                                       100.0 * (v_items.went_well + v_items.failed) / v_all);
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

create or replace function execution.finish_run(p_run_id uuid, p_actor text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run record;
    v_status text;
    v_phase_status text;
begin
    -- The lock comes first: of two jobs that end at once, the later one sees both.
    select run.*
      into strict v_run
      from execution.campaign_runs as run
     where run.id = p_run_id
       for no key update;
    if exists (select
                 from execution.job_queue as job
                where job.run_id = p_run_id
                  and job.status in ('queued', 'locked', 'failed'))
    then
        return;
    end if;
    select case
               when bool_and(job.outcome = 'completed') then 'completed'
               when bool_and(job.outcome = 'failed') then 'failed'
               else 'partial'
           end
      into v_status
      from execution.job_queue as job
     where job.tenant_id = v_run.tenant_id
       and job.run_id = p_run_id;
    update execution.campaign_runs
       set status = v_status,
           finished_at = now()
     where id = p_run_id;
    perform execution.audit(v_run.tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor,
                            'run.' || v_status, null);
    perform
       from execution.campaigns
      where tenant_id = v_run.tenant_id
        and id = v_run.campaign_id
        for no key update;
    select phase.status
      into strict v_phase_status
      from execution.campaign_phases as phase
     where phase.tenant_id = v_run.tenant_id
       and phase.id = v_run.phase_id
       for no key update;
    -- A phase that is paused ends when it is resumed.
    if v_phase_status = 'in_progress' then
        perform execution.end_phase(v_run.tenant_id, v_run.phase_id, p_actor);
    end if;
end
$$;

-- A trigger on a phase of the tenant. `outcome` is `changed`; `unchanged` when the phase is where the trigger leads, and then
-- nothing was written; or `conflict`, with the reason.
--
-- After a pause has committed, await_reservations waits for those that began to reserve before.
create function execution.control_phase(
    p_campaign_id uuid, p_phase text, p_trigger text, p_expected text, p_actor text, p_reason text default null,
    p_job_size integer default 500)
returns table (outcome text, status text, kind text, reason text, sequence bigint, run_id uuid, items bigint,
               second_messages bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_goal constant text := execution.phase_goal(p_trigger);
    v_reason constant text := nullif(left(btrim(p_reason), 2000), '');
    v_phase record;
    v_run record;
    v_run_id uuid;
    v_doubts bigint;
    v_sequence bigint;
    v_second bigint;
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    if v_goal is null then
        raise exception 'a phase is not controlled by `%`', coalesce(p_trigger, 'null')
            using errcode = 'invalid_parameter_value', hint = 'Use start, pause, resume, retry, rerun, complete or fail.';
    end if;
    if coalesce(btrim(p_actor), '') = '' then
        raise exception 'somebody must be named who does this' using errcode = 'invalid_parameter_value';
    end if;
    -- The campaign before its phase, as everybody does. The counter is read under the lock.
    select campaign.sequence
      into v_sequence
      from execution.campaigns as campaign
     where campaign.tenant_id = v_tenant_id
       and campaign.id = p_campaign_id
       for no key update;
    if not found then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;
    select phase.*
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = v_tenant_id
       and phase.campaign_id = p_campaign_id
       and phase.phase = p_phase
       for no key update;
    if not found then
        raise exception 'the campaign has no phase `%`', p_phase
            using errcode = 'no_data_found',
                  hint = (select 'It has: ' || string_agg(phase.phase, ', ' order by phase.position) || '.'
                            from execution.campaign_phases as phase
                           where phase.tenant_id = v_tenant_id and phase.campaign_id = p_campaign_id);
    end if;
    select run.id, run.status, run.intended
      into v_run
      from execution.campaign_runs as run
     where run.tenant_id = v_tenant_id
       and run.phase_id = v_phase.id
     order by run.number desc
     limit 1;

    if v_phase.kind = 'delivery' and p_trigger in ('complete', 'fail') then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'a delivery ends when its items have; `' || p_trigger || '` is for phases that another service does',
                            v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
        return;
    end if;
    if v_phase.status = v_goal then
        return query select 'unchanged', v_phase.status, v_phase.kind, null::text, v_sequence, v_run.id, v_run.intended::bigint,
                            null::bigint;
        return;
    end if;
    if p_expected is not null and p_expected <> v_phase.status then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'the phase is ' || v_phase.status || ', not ' || p_expected || ' as expected',
                            v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
        return;
    end if;
    if execution.phase_target(p_trigger, v_phase.status) is null then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'a phase that is ' || v_phase.status || ' cannot ' || p_trigger, v_sequence, v_run.id,
                            v_run.intended::bigint, null::bigint;
        return;
    end if;

    if p_trigger = 'start' then
        v_sequence := execution.start_phase(v_tenant_id, p_campaign_id, v_phase.id, gen_random_uuid(), p_job_size, p_actor, v_reason);
    elsif p_trigger = 'retry' and v_phase.kind = 'delivery' then
        v_run_id := execution.create_run(v_tenant_id, v_phase.id, gen_random_uuid(), 'retry', p_job_size, p_actor);
        if v_run_id is null then
            select count(*)
              into v_doubts
              from execution.channel_outbox as item
             where item.run_id = any (execution.runs_since_all(v_tenant_id, v_phase.id))
               and item.status = 'queued';
            if v_doubts > 0 then
                return query select 'conflict', v_phase.status, v_phase.kind,
                                    'nothing of it failed for certain; ' || v_doubts || ' items are in doubt and must be settled first',
                                    v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
                return;
            end if;
        end if;
        v_sequence := execution.enter_phase_state(
            v_tenant_id, p_campaign_id, v_phase.id, 'retry', v_run_id, p_actor,
            jsonb_strip_nulls(jsonb_build_object(
                'items', coalesce((select run.intended from execution.campaign_runs as run where run.id = v_run_id), 0),
                'reason', v_reason)));
        if v_run_id is null then
            -- What was in doubt turned out well, and nothing is left to send: it ends by itself, in a moment.
            update execution.campaign_phases set due = 'end' where tenant_id = v_tenant_id and id = v_phase.id;
        end if;
    elsif p_trigger = 'rerun' and v_phase.kind = 'delivery' then
        v_run_id := execution.create_run(v_tenant_id, v_phase.id, gen_random_uuid(), 'rerun', p_job_size, p_actor);
        -- Whoever got it, or may have, gets it again.
        select count(distinct item.recipient_id)
          into v_second
          from execution.job_queue as job
               cross join lateral unnest(job.item_ids) as wanted (id)
               join execution.channel_outbox as item on item.recipient_id = wanted.id
         where job.tenant_id = v_tenant_id
           and job.run_id = v_run_id
           and item.run_id in (select run.id
                                 from execution.campaign_runs as run
                                where run.tenant_id = v_tenant_id
                                  and run.phase_id = v_phase.id
                                  and run.id <> v_run_id)
           and item.status in ('sent', 'called', 'posted', 'queued');
        v_sequence := execution.enter_phase_state(
            v_tenant_id, p_campaign_id, v_phase.id, 'rerun', v_run_id, p_actor,
            jsonb_strip_nulls(jsonb_build_object(
                'items', (select run.intended from execution.campaign_runs as run where run.id = v_run_id),
                'secondMessages', v_second, 'reason', v_reason)));
    else
        if p_trigger = 'complete' then
            perform execution.note_progress_of(v_tenant_id, p_campaign_id, v_phase.id, 100);
        end if;
        v_sequence := execution.enter_phase_state(
            v_tenant_id, p_campaign_id, v_phase.id, p_trigger, v_run.id, p_actor,
            jsonb_strip_nulls(jsonb_build_object('reason', v_reason)));
        if p_trigger = 'pause' then
            perform execution.shelve_jobs(v_run.id);
        elsif p_trigger = 'resume' then
            perform execution.unshelve_jobs(v_run.id);
            if v_run.status in ('completed', 'partial', 'failed') then
                -- Its last calls ended while it was paused: it ends by itself, in a moment.
                update execution.campaign_phases set due = 'end' where tenant_id = v_tenant_id and id = v_phase.id;
            end if;
        end if;
    end if;
    return query
        select 'changed', phase.status, phase.kind, null::text, v_sequence, run.id, run.intended::bigint, v_second
          from execution.campaign_phases as phase
               left join lateral (
                   select newest.id, newest.intended
                     from execution.campaign_runs as newest
                    where newest.tenant_id = phase.tenant_id
                      and newest.phase_id = phase.id
                    order by newest.number desc
                    limit 1) as run on true
         where phase.tenant_id = v_tenant_id
           and phase.id = v_phase.id;
end
$$;

-- Puts the waiting jobs of a paused run where no claim looks. A job that somebody is just taking is skipped: it is handed back
-- when it cannot reserve.
create function execution.shelve_jobs(p_run_id uuid)
returns void
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    update execution.job_queue as job
       set run_after = 'infinity',
           waits_for = null
      from (select waiting.id
              from execution.job_queue as waiting
             where waiting.run_id = p_run_id
               and waiting.status = 'queued'
               and waiting.run_after < 'infinity'
             order by waiting.id
               for no key update skip locked) as waiting
     where job.id = waiting.id
$$;

create function execution.unshelve_jobs(p_run_id uuid)
returns void
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    update execution.job_queue as job
       set run_after = greatest(run.scheduled_for, now())
      from execution.campaign_runs as run
     where run.id = p_run_id
       and job.run_id = run.id
       and job.status = 'queued'
       and job.run_after = 'infinity'
$$;

-- Waits until whoever began to reserve items of a phase before it was paused has committed, and says how many calls are under
-- way. begin_outbox_items locks its jobs before it looks at the phase; so once these locks were seen free, nobody is left who saw
-- the phase in progress.
create function execution.await_reservations(p_campaign_id uuid, p_phase text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_run_id uuid;
    v_job_id uuid;
    v_in_flight bigint;
begin
    select run.id
      into v_run_id
      from execution.campaign_phases as phase
           join execution.campaign_runs as run
             on run.tenant_id = phase.tenant_id and run.phase_id = phase.id
     where phase.tenant_id = v_tenant_id
       and phase.campaign_id = p_campaign_id
       and phase.phase = p_phase
     order by run.number desc
     limit 1;
    -- A worker that stands still in the middle is not waited for longer: who asks again is told when it is over.
    perform set_config('lock_timeout', '10s', true);
    -- One at a time, and let go at once: whoever holds several locks while it waits for another may wait in a circle.
    for v_job_id in
        select job.id
          from execution.job_queue as job
         where job.run_id = v_run_id
           and job.status = 'locked'
    loop
        begin
            perform from execution.job_queue as job where job.id = v_job_id for no key update;
            raise sqlstate 'PR000';
        exception when sqlstate 'PR000' then
            null; -- the lock is gone with what was undone
        end;
    end loop;
    select coalesce(sum(progress.in_flight), 0)
      into v_in_flight
      from execution.run_progress(array[v_run_id]) as progress;
    return v_in_flight;
end
$$;

revoke all on all functions in schema execution from public;
grant execute on function
    execution.deploy_campaign(uuid, text, text, uuid, integer),
    execution.control_phase(uuid, text, text, text, text, text, integer),
    execution.await_reservations(uuid, text)
    to postrider_app;
