-- What changes campaigns: create, deploy, claim, reserve, settle, complete, fail, release, resolve, verify.
-- Safe beside running workers: it adds functions and touches no table.

-- A time as it stands in a key: RFC 3339 in UTC with microseconds, or a dash.
create function execution.key_time(p_at timestamptz)
returns text
language sql
stable
parallel safe
return coalesce(to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '-');

-- The key of an item. `postrider_model::key` computes the same, and a test compares the two.
create function execution.outbox_key(p_run_id uuid, p_item_id uuid, p_key_part text, p_scheduled_for timestamptz)
returns text
language sql
stable
parallel safe
return encode(sha256(convert_to(p_run_id::text || '|' || p_item_id::text || '|' || p_key_part || '|'
                                || execution.key_time(p_scheduled_for), 'UTF8')), 'hex');

-- The word for success on a channel.
create function execution.success_of(p_channel text)
returns text
language sql
immutable
parallel safe
return case p_channel when 'email' then 'sent' when 'voice' then 'called' when 'social' then 'posted' end;

-- Adds a line to the log.
create function execution.audit(
    p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_run_id uuid, p_job_id uuid, p_outbox_id uuid,
    p_actor text, p_action text, p_note text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into execution.campaign_audit_log
           (tenant_id, campaign_id, phase_id, run_id, job_id, outbox_id, actor, action, note)
    values (p_tenant_id, p_campaign_id, p_phase_id, p_run_id, p_job_id, p_outbox_id, p_actor, p_action, p_note);
end
$$;

-- A campaign with its phases, in the tenant of the context; all of it or nothing. A phase is a JSON object with
-- id, phase, kind, channel, asset_id, list, provider_account, failure_tolerance, scheduled_for, quiet_time_seconds;
-- lists and accounts are given by name. What is wrong is said with the name of the phase.
create function execution.create_campaign(
    p_id uuid, p_workspace_id uuid, p_name text, p_auto_advance boolean, p_phases jsonb, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_phase jsonb;
    v_position integer := 0;
    v_kind text;
    v_channel text;
    v_asset_id uuid;
    v_asset_channel text;
    v_list_id uuid;
    v_account_id uuid;
begin
    if jsonb_typeof(p_phases) is distinct from 'array' or jsonb_array_length(p_phases) not between 1 and 100 then
        raise exception 'a campaign has between 1 and 100 phases' using errcode = 'invalid_parameter_value';
    end if;
    insert into execution.campaigns (id, tenant_id, workspace_id, name, auto_advance)
    values (p_id, v_tenant_id, p_workspace_id, p_name, p_auto_advance);
    perform execution.audit(v_tenant_id, p_id, null, null, null, null, p_actor, 'campaign.created', p_name);

    for v_phase in select value from jsonb_array_elements(p_phases) loop
        v_position := v_position + 1;
        v_kind := coalesce(v_phase ->> 'kind', 'delivery');
        v_channel := v_phase ->> 'channel';
        v_asset_id := null;
        v_list_id := null;
        v_account_id := null;
        if v_kind = 'delivery' then
            select asset.id, asset.channel
              into v_asset_id, v_asset_channel
              from execution.assets as asset
             where asset.tenant_id = v_tenant_id
               and asset.workspace_id = p_workspace_id
               and asset.id = (v_phase ->> 'asset_id')::uuid;
            if not found then
                raise exception 'phase `%`: there is no asset %', v_phase ->> 'phase', coalesce(v_phase ->> 'asset_id', '(none)')
                    using errcode = 'no_data_found', hint = 'Create the asset first, and name its id.';
            end if;
            if v_asset_channel is distinct from v_channel then
                raise exception 'phase `%`: the asset is for channel %, the phase for %', v_phase ->> 'phase',
                                v_asset_channel, coalesce(v_channel, '(none)')
                    using errcode = 'invalid_parameter_value', hint = 'Choose an asset of the phase''s channel.';
            end if;
            if v_phase ->> 'list' is not null then
                select list.id
                  into v_list_id
                  from execution.lead_lists as list
                 where list.tenant_id = v_tenant_id
                   and list.workspace_id = p_workspace_id
                   and list.name = v_phase ->> 'list';
                if not found then
                    raise exception 'phase `%`: there is no list `%`', v_phase ->> 'phase', v_phase ->> 'list'
                        using errcode = 'no_data_found', hint = 'Import one with `postrider campaign import --list NAME FILE`.';
                end if;
            elsif v_channel <> 'social' then
                raise exception 'phase `%` names no list', v_phase ->> 'phase'
                    using errcode = 'invalid_parameter_value', hint = 'Say whom it addresses with "list".';
            end if;
            select account.id
              into v_account_id
              from tenancy.provider_accounts as account
             where account.tenant_id = v_tenant_id
               and account.workspace_id = p_workspace_id
               and account.name = v_phase ->> 'provider_account';
            if not found then
                raise exception 'phase `%`: there is no provider account `%`', v_phase ->> 'phase',
                                coalesce(v_phase ->> 'provider_account', '(none)')
                    using errcode = 'no_data_found', hint = 'Add one with `postrider accounts add`.';
            end if;
        end if;
        insert into execution.campaign_phases
               (id, tenant_id, workspace_id, campaign_id, position, phase, kind, channel, asset_id, list_id,
                provider_account_id, failure_tolerance, scheduled_for, quiet_time)
        values ((v_phase ->> 'id')::uuid, v_tenant_id, p_workspace_id, p_id, v_position, v_phase ->> 'phase', v_kind,
                v_channel, v_asset_id, v_list_id, v_account_id,
                coalesce((v_phase ->> 'failure_tolerance')::numeric, 0.05),
                (v_phase ->> 'scheduled_for')::timestamptz,
                coalesce(make_interval(secs => (v_phase ->> 'quiet_time_seconds')::double precision),
                         interval '11 minutes'));
    end loop;
end
$$;

-- Deploys a phase: snapshots the audience and makes, in one transaction, one run and its jobs. Deploying a phase that
-- is in progress changes nothing and answers with its run. Nothing here ever moves a run past `queued`.
create function execution.deploy_campaign(
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
    v_audience uuid[];
    v_members bigint;
begin
    if p_job_size is null or p_job_size not between 1 and 10000 then
        raise exception 'a job has between 1 and 10000 items, not %', coalesce(p_job_size::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if not exists (select from execution.campaigns where tenant_id = v_tenant_id and id = p_campaign_id) then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;

    -- The lock makes one run of two deployments at once.
    select phase.*, asset.version as asset_version, account.provider
      into v_phase
      from execution.campaign_phases as phase
           left join execution.assets as asset
             on asset.tenant_id = phase.tenant_id and asset.id = phase.asset_id
           left join tenancy.provider_accounts as account
             on account.tenant_id = phase.tenant_id and account.id = phase.provider_account_id
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
                      hint = '`postrider campaign status` shows how they stand; to send again, create another campaign.';
        end if;
        raise exception 'the campaign has no phase `%`', p_phase
            using errcode = 'no_data_found',
                  hint = (select 'It has: ' || string_agg(phase.phase, ', ' order by phase.position) || '.'
                            from execution.campaign_phases as phase
                           where phase.tenant_id = v_tenant_id and phase.campaign_id = p_campaign_id);
    end if;
    if v_phase.kind <> 'delivery' then
        raise exception 'phase `%` is done by another service and is not deployed', v_phase.phase
            using errcode = 'invalid_parameter_value', hint = 'Deploy a phase that is a delivery.';
    end if;
    if v_phase.status in ('in_progress', 'paused') then
        return (select run.id
                  from execution.campaign_runs as run
                 where run.tenant_id = v_tenant_id
                   and run.phase_id = v_phase.id
                 order by run.created_at desc
                 limit 1);
    end if;
    if v_phase.status <> 'not_started' then
        raise exception 'phase `%` is % and is not deployed twice', v_phase.phase, v_phase.status
            using errcode = 'invalid_parameter_value', hint = 'To send again, create another campaign.';
    end if;

    -- The audience, in a fixed order. Of several leads with one address the first is addressed: nobody gets the same
    -- message twice because a list holds them twice. A social phase without a list is one post.
    if v_phase.list_id is null then
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
                 where member.tenant_id = v_tenant_id
                   and member.list_id = v_phase.list_id) as audience;
    end if;
    if v_members = 0 then
        raise exception 'the list of phase `%` is empty', v_phase.phase
            using errcode = 'invalid_parameter_value', hint = 'Import leads with `postrider campaign import`.';
    end if;

    insert into execution.campaign_runs
           (id, tenant_id, workspace_id, campaign_id, phase_id, channel, asset_id, provider_account_id, provider,
            scheduled_for, quiet_time, key_part, intended, same_address, correlation_id)
    values (v_run_id, v_tenant_id, v_phase.workspace_id, p_campaign_id, v_phase.id, v_phase.channel, v_phase.asset_id,
            v_phase.provider_account_id, v_phase.provider, v_phase.scheduled_for, v_phase.quiet_time,
            case v_phase.channel
                when 'email' then v_phase.asset_id::text
                when 'voice' then v_phase.asset_version::text
                else 'social'
            end,
            cardinality(v_audience), v_members - cardinality(v_audience), gen_random_uuid());

    insert into execution.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, run_after, item_ids)
    select gen_random_uuid(), v_tenant_id, v_phase.workspace_id, v_run_id, part + 1,
           case v_phase.channel
               when 'email' then 'email_send_batch'
               when 'voice' then 'voice_call_batch'
               else 'social_post_batch'
           end,
           coalesce(v_phase.scheduled_for, now()),
           v_audience[part * p_job_size + 1 : (part + 1) * p_job_size]
      from generate_series(0, (cardinality(v_audience) - 1) / p_job_size) as part;

    update execution.campaign_phases
       set status = 'in_progress',
           updated_at = now()
     where tenant_id = v_tenant_id
       and id = v_phase.id;
    insert into execution.turns (tenant_id) values (v_tenant_id) on conflict do nothing;
    perform execution.audit(v_tenant_id, p_campaign_id, v_phase.id, v_run_id, null, null, v_actor, 'run.deployed',
                            cardinality(v_audience) || ' items');
    perform execution.audit(v_tenant_id, p_campaign_id, v_phase.id, v_run_id, null, null, v_actor, 'phase.in_progress',
                            v_phase.phase);
    return v_run_id;
end
$$;

-- Items of a job that nobody will answer for any more: from now on they are in doubt.
create function execution.doubt_leftovers(p_job_id uuid, p_actor text)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    -- Settlements lock items in the order of their ids too, so that the two never wait in a circle.
    with leftover as (
        select item.id
          from execution.channel_outbox as item
         where item.job_id = p_job_id
           and item.status = 'queued'
           and item.in_doubt_since is null
         order by item.id
           for no key update
    ), doubted as (
        update execution.channel_outbox as item
           set in_doubt_since = now(),
               error = 'the worker that reserved it is gone'
          from leftover
         where item.id = leftover.id
           and item.status = 'queued'
           and item.in_doubt_since is null
     returning item.id, item.tenant_id, item.run_id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select doubted.tenant_id, doubted.run_id, p_job_id, doubted.id, p_actor, 'item.in_doubt',
           'the worker that reserved it is gone'
      from doubted;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

-- When the last job of a run has ended, the run has; and with it its phase.
create function execution.finish_run(p_run_id uuid, p_actor text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run record;
    v_jobs record;
    v_status text;
    v_phase record;
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
    select bool_and(job.outcome = 'completed') as all_completed,
           bool_and(job.outcome = 'failed') as all_failed,
           coalesce(sum(job.succeeded + job.skipped), 0) as went_well
      into v_jobs
      from execution.job_queue as job
     where job.tenant_id = v_run.tenant_id
       and job.run_id = p_run_id;
    v_status := case when v_jobs.all_completed then 'completed' when v_jobs.all_failed then 'failed' else 'partial' end;
    update execution.campaign_runs
       set status = v_status,
           finished_at = now()
     where id = p_run_id;
    perform execution.audit(v_run.tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor,
                            'run.' || v_status, null);

    select phase.*
      into strict v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = v_run.tenant_id
       and phase.id = v_run.phase_id
       for no key update;
    if v_phase.status <> 'in_progress' then
        return;
    end if;
    v_phase_status := case
                          when v_status = 'completed' then 'completed'
                          -- What nobody tried, or nobody knows about, is no better than what failed.
                          when v_status = 'partial'
                               and v_run.intended - v_jobs.went_well <= v_phase.failure_tolerance * v_run.intended
                               then 'completed'
                          else 'failed'
                      end;
    update execution.campaign_phases
       set status = v_phase_status,
           updated_at = now()
     where tenant_id = v_phase.tenant_id
       and id = v_phase.id;
    perform execution.audit(v_run.tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor,
                            'phase.' || v_phase_status, v_phase.phase);
end
$$;

-- How the items of a job stand. The job is read apart from them: its list of items would be unpacked once for each.
create function execution.count_items(p_job_id uuid)
returns table (intended integer, succeeded integer, failed integer, skipped integer, in_doubt integer, missing integer)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    return query
        select job.intended, items.succeeded, items.failed, items.skipped, items.in_doubt, job.intended - items.known
          from (select cardinality(item_ids) as intended
                  from execution.job_queue
                 where id = p_job_id) as job,
               (select count(*) filter (where status in ('sent', 'called', 'posted'))::integer as succeeded,
                       count(*) filter (where status = 'failed')::integer as failed,
                       count(*) filter (where status = 'skipped')::integer as skipped,
                       count(*) filter (where status = 'queued')::integer as in_doubt,
                       count(*)::integer as known
                  from execution.channel_outbox
                 where job_id = p_job_id) as items;
end
$$;

-- Gives every item of a job that was never reserved its end: nobody is going to. Its key is used from now on, so that a worker
-- that wakes up late cannot send it either.
create function execution.fail_missing(p_job_id uuid, p_error text)
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    insert into execution.channel_outbox
           (tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, idempotency_key, status, error, attempt,
            finalized_at)
    select job.tenant_id, job.workspace_id, job.run_id, job.id, run.channel, run.provider, item.id,
           execution.outbox_key(run.id, item.id, run.key_part, run.scheduled_for), 'failed',
           left('its job gave up before it was tried: ' || p_error, 2000), job.attempts, now()
      from execution.job_queue as job
           join execution.campaign_runs as run on run.id = job.run_id
           cross join unnest(job.item_ids) as item (id)
     where job.id = p_job_id
        on conflict (tenant_id, workspace_id, idempotency_key) do nothing
$$;

-- Ends a job that its holder has locked, or puts it off. What comes out follows from its items alone.
create function execution.end_attempt(p_job_id uuid, p_actor text, p_retry_after interval, p_error text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_job record;
    v_items record;
    v_outcome text;
    v_status text;
begin
    select job.id, job.tenant_id, job.run_id, job.attempts, job.max_attempts
      into strict v_job
      from execution.job_queue as job
     where job.id = p_job_id;
    select * into strict v_items from execution.count_items(p_job_id);
    if v_items.in_doubt > 0 then
        -- Counted again, because an answer may have come in between.
        perform execution.doubt_leftovers(p_job_id, p_actor);
        select * into strict v_items from execution.count_items(p_job_id);
    end if;

    if v_items.in_doubt + v_items.missing = 0 then
        v_outcome := case
                         when v_items.failed = 0 then 'completed'
                         when v_items.failed = v_items.intended then 'failed'
                         else 'partial'
                     end;
        v_status := case v_outcome when 'failed' then 'dead' else 'completed' end;
    elsif v_job.attempts < v_job.max_attempts then
        v_status := 'failed';
    else
        perform execution.fail_missing(p_job_id, coalesce(p_error, 'no attempts are left'));
        select * into strict v_items from execution.count_items(p_job_id);
        v_outcome := case when v_items.succeeded > 0 then 'partial' else 'failed' end;
        v_status := 'dead';
    end if;

    if v_status = 'completed' then
        update execution.job_queue
           set status = 'completed',
               outcome = v_outcome,
               locked_by = null,
               locked_at = null,
               succeeded = v_items.succeeded,
               failed = v_items.failed,
               skipped = v_items.skipped,
               finished_at = now()
         where id = p_job_id;
    else
        update execution.job_queue
           set status = 'failed',
               locked_by = null,
               locked_at = null,
               run_after = now() + p_retry_after,
               last_error = left(coalesce(p_error, case when v_items.in_doubt > 0 then v_items.in_doubt || ' items in doubt' end,
                                          last_error), 2000)
         where id = p_job_id;
        if v_status = 'dead' then
            update execution.job_queue
               set status = 'dead',
                   outcome = v_outcome,
                   succeeded = v_items.succeeded,
                   failed = v_items.failed,
                   skipped = v_items.skipped,
                   finished_at = now()
             where id = p_job_id;
        end if;
    end if;
    perform execution.audit(v_job.tenant_id, null, null, v_job.run_id, p_job_id, null, p_actor, 'job.' || v_status,
                            coalesce(p_error, v_outcome));
    if v_status in ('completed', 'dead') then
        perform execution.finish_run(v_job.run_id, p_actor);
    end if;
    return v_status;
end
$$;

-- Takes up to `p_limit` jobs, tenant by tenant in turns: whose turn was longest ago comes first, so that a tenant with
-- a million items does not starve one with ten. Before that, locks older than five minutes are taken away and retries
-- that are due are queued again. An attempt is counted here, when it begins, so that a job that kills its worker does
-- not come for ever.
--
-- `p_except` are tenants that have enough of this worker's attention already.
create function execution.claim_queued_jobs(p_worker_id text, p_limit integer default 10, p_except uuid[] default '{}')
returns table (
    job_id uuid, tenant_id uuid, workspace_id uuid, run_id uuid, job_type text, attempts integer, max_attempts integer,
    item_ids uuid[], channel text, asset_id uuid, provider_account_id uuid, provider text, scheduled_for timestamptz,
    key_part text, correlation_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_job record;
    v_run_id uuid;
    v_run record;
    v_tenants uuid[];
    v_tenant uuid;
    v_share integer;
    v_found uuid[];
    v_ids uuid[] := '{}';
begin
    if coalesce(btrim(p_worker_id), '') = '' then
        raise exception 'a worker must name itself to claim jobs'
            using errcode = 'invalid_parameter_value', hint = 'Use a name that is new at every start of the process.';
    end if;
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'the limit must lie between 1 and 1000, not %', coalesce(p_limit::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;

    for v_job in
        with stale as (
            select job.id, job.tenant_id, job.run_id, job.attempts, job.max_attempts, job.locked_by
              from execution.job_queue as job
             where job.status = 'locked'
               and job.locked_at < now() - interval '5 minutes'
             order by job.locked_at
             limit 100
               for update skip locked
        )
        -- Run by run, because the end of a run locks it: two sweeps at once never wait in a circle.
        select stale.* from stale order by stale.run_id, stale.id
    loop
        -- A worker that stands still may do so inside a transaction that settles some of these items. It is not waited for,
        -- or one such worker would hold up every other one here; the job comes again.
        begin
            perform
               from execution.channel_outbox as item
              where item.job_id = v_job.id
                and item.status = 'queued'
                and item.in_doubt_since is null
              order by item.id
                for no key update nowait;
        exception when lock_not_available then
            continue;
        end;
        if v_job.attempts < v_job.max_attempts then
            perform execution.doubt_leftovers(v_job.id, p_worker_id);
            update execution.job_queue
               set status = 'queued',
                   locked_by = null,
                   locked_at = null,
                   last_error = 'its worker was not heard of for five minutes'
             where id = v_job.id;
            perform execution.audit(v_job.tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.requeued',
                                    'not heard of for five minutes: ' || v_job.locked_by);
        else
            perform execution.end_attempt(v_job.id, p_worker_id, interval '0', 'its worker was not heard of for five minutes');
        end if;
    end loop;
    with due as (
        select retry.id
          from execution.job_queue as retry
         where retry.status = 'failed'
           and retry.run_after <= now()
         order by retry.run_after
         limit 100
           for update skip locked
    ), requeued as (
        update execution.job_queue as job
           set status = 'queued'
          from due
         where job.id = due.id
     returning job.tenant_id, job.run_id, job.id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action)
    select requeued.tenant_id, requeued.run_id, requeued.id, p_worker_id, 'job.queued'
      from requeued;

    -- Each tenant that has a job waiting is found with one step in the index.
    v_tenants := array(
        with recursive waiting as (
            (select job.tenant_id, job.run_after
               from execution.job_queue as job
              where job.status = 'queued'
              order by job.tenant_id, job.run_after
              limit 1)
            union all
            select next.tenant_id, next.run_after
              from waiting
                   cross join lateral (
                       select job.tenant_id, job.run_after
                         from execution.job_queue as job
                        where job.status = 'queued'
                          and job.tenant_id > waiting.tenant_id
                        order by job.tenant_id, job.run_after
                        limit 1) as next
        )
        select waiting.tenant_id
          from waiting
               left join execution.turns as turn on turn.tenant_id = waiting.tenant_id
         where waiting.run_after <= now()
           and waiting.tenant_id <> all (p_except)
         order by turn.last_turn_at nulls first, waiting.tenant_id);

    -- First an equal share for each, then whatever is left for whoever has more.
    v_share := greatest(1, p_limit / greatest(1, cardinality(v_tenants)));
    for round in 1..2 loop
        foreach v_tenant in array v_tenants loop
            exit when cardinality(v_ids) >= p_limit;
            v_found := array(
                select job.id
                  from execution.job_queue as job
                 where job.tenant_id = v_tenant
                   and job.status = 'queued'
                   and job.run_after <= now()
                   and job.id <> all (v_ids)
                 order by job.run_after, job.id
                 limit least(v_share, p_limit - cardinality(v_ids))
                   for update skip locked);
            v_ids := v_ids || v_found;
        end loop;
        v_share := p_limit;
    end loop;
    if cardinality(v_ids) = 0 then
        return;
    end if;

    update execution.job_queue as job
       set status = 'locked',
           attempts = job.attempts + 1,
           locked_by = p_worker_id,
           locked_at = now()
     where job.id = any (v_ids);
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action, note)
    select job.tenant_id, job.run_id, job.id, p_worker_id, 'job.locked', 'attempt ' || job.attempts
      from execution.job_queue as job
     where job.id = any (v_ids);
    -- In the order of their ids, so that two claims never wait in a circle.
    for v_run_id in
        select distinct job.run_id from execution.job_queue as job where job.id = any (v_ids) order by job.run_id
    loop
        update execution.campaign_runs as run
           set status = 'running',
               started_at = now()
         where run.id = v_run_id
           and run.status = 'queued'
     returning run.tenant_id, run.campaign_id, run.phase_id
          into v_run;
        if found then
            perform execution.audit(v_run.tenant_id, v_run.campaign_id, v_run.phase_id, v_run_id, null, null, p_worker_id,
                                    'run.running', null);
        end if;
    end loop;
    -- Turns are noted in the order in which they were taken. Whoever is being served by another worker at this moment has
    -- its turn noted by that one.
    update execution.turns as turn
       set last_turn_at = (select clock_timestamp()) + array_position(v_tenants, turn.tenant_id) * interval '1 microsecond'
     where turn.tenant_id in (select noted.tenant_id
                                from execution.turns as noted
                               where noted.tenant_id = any (array(select job.tenant_id
                                                                    from execution.job_queue as job
                                                                   where job.id = any (v_ids)))
                                 for update skip locked);

    return query
        select job.id, job.tenant_id, job.workspace_id, job.run_id, job.job_type, job.attempts, job.max_attempts, job.item_ids,
               run.channel, run.asset_id, run.provider_account_id, run.provider, run.scheduled_for, run.key_part,
               run.correlation_id
          from execution.job_queue as job
               join execution.campaign_runs as run on run.id = job.run_id
         where job.id = any (v_ids);
end
$$;

-- Keeps locks fresh. Answers with those that the worker still holds.
--
-- Here and below, rows are looked up with `= any (array[…])` instead of `=`. An equality lets the planner read the whole table
-- in the order of its ids and compare, and that is what it does when it plans while the table looks empty, for as long as the
-- session keeps the plan. This way a look-up per row is the only plan there is.
create function execution.heartbeat_jobs(p_worker_id text, p_job_ids uuid[], p_attempts integer[])
returns setof uuid
language sql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    update execution.job_queue as job
       set locked_at = now()
      from unnest(p_job_ids, p_attempts) as held (id, attempt)
     where job.id = any (array[held.id])
       and job.status = 'locked'
       and job.locked_by = p_worker_id
       and job.attempts = held.attempt
 returning job.id
$$;

-- Reserves items: one row each, with its key, for jobs that this worker holds. A key that exists is never reserved again.
--
-- A window is a stretch of a job's items: `p_first[n]` is the place of the first, `p_counts[n]` how many. The other arrays
-- have one entry per item, window after window. An item that will not be called has its verdict already: `p_verdicts` is
-- then `failed` or `skipped`, and `p_reasons` says why.
--
-- The answer has a row per item, whose verdict is `reserved`, or the state in which the item is: ended now, or found
-- ended or reserved from before. A window of a job that the worker does not hold any more comes back as one row
-- with the verdict `lost`.
create function execution.begin_outbox_items(
    p_worker_id text,
    p_job_ids uuid[],
    p_attempts integer[],
    p_first integer[],
    p_counts integer[],
    p_outbox_ids uuid[],
    p_recipients text[],
    p_message_hashes bytea[],
    p_verdicts text[],
    p_reasons text[])
returns table (job_id uuid, outbox_id uuid, item_id uuid, idempotency_key text, verdict text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_job record;
    v_windows integer[] := '{}';
    v_items uuid[] := '{}';
    -- The places of suppressed leads among them: another tenant may know a lead by the same id.
    v_suppressed integer[] := '{}';
    v_tenant_ids uuid[] := '{}';
    v_workspace_ids uuid[] := '{}';
    v_run_ids uuid[] := '{}';
    v_channels text[] := '{}';
    v_providers text[] := '{}';
    v_prefixes text[] := '{}';
    v_suffixes text[] := '{}';
    v_wanted integer := 0;
    v_inserted integer;
begin
    if not array_remove(p_verdicts, null) <@ array['failed', 'skipped'] then
        raise exception 'an item that is not called is failed or skipped' using errcode = 'invalid_parameter_value';
    end if;
    for n in 1..cardinality(p_job_ids) loop
        -- Shared, so that nobody takes the job away while its reservations are being written.
        select job.tenant_id, job.workspace_id, job.run_id, run.channel, run.provider, run.key_part, run.scheduled_for,
               job.item_ids[p_first[n] : p_first[n] + p_counts[n] - 1] as items
          into v_job
          from execution.job_queue as job
               join execution.campaign_runs as run on run.id = job.run_id
         where job.id = p_job_ids[n]
           and job.status = 'locked'
           and job.locked_by = p_worker_id
           and job.attempts = p_attempts[n]
           for share of job;
        if not found then
            v_items := v_items || array_fill(null::uuid, array[p_counts[n]]);
            return query select p_job_ids[n], null::uuid, null::uuid, null::text, 'lost'::text;
        elsif cardinality(v_job.items) is distinct from p_counts[n] then
            raise exception 'job % has no items % to %', p_job_ids[n], p_first[n], p_first[n] + p_counts[n] - 1
                using errcode = 'invalid_parameter_value';
        else
            v_suppressed := v_suppressed || array(
                select cardinality(v_items) + array_position(v_job.items, lead.id)
                  from execution.leads as lead
                 where lead.tenant_id = v_job.tenant_id
                   and lead.id = any (v_job.items)
                   and lead.suppressed_at is not null);
            v_items := v_items || v_job.items;
            v_wanted := v_wanted + p_counts[n];
        end if;
        v_windows := v_windows || array_fill(n, array[p_counts[n]]);
        v_tenant_ids := v_tenant_ids || v_job.tenant_id;
        v_workspace_ids := v_workspace_ids || v_job.workspace_id;
        v_run_ids := v_run_ids || v_job.run_id;
        v_channels := v_channels || v_job.channel;
        v_providers := v_providers || v_job.provider;
        v_prefixes := v_prefixes || (v_job.run_id::text || '|');
        v_suffixes := v_suffixes || ('|' || v_job.key_part || '|' || execution.key_time(v_job.scheduled_for));
    end loop;

    return query
        insert into execution.channel_outbox as item
               (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
                status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
        select wanted.id,
               v_tenant_ids[wanted.n],
               v_workspace_ids[wanted.n],
               v_run_ids[wanted.n],
               p_job_ids[wanted.n],
               v_channels[wanted.n],
               v_providers[wanted.n],
               wanted.item_id,
               wanted.recipient,
               -- outbox_key, with what a window has in common worked out once.
               encode(sha256(convert_to(v_prefixes[wanted.n] || wanted.item_id::text || v_suffixes[wanted.n], 'UTF8')), 'hex'),
               wanted.status,
               wanted.status = 'skipped',
               wanted.reason,
               p_worker_id,
               p_attempts[wanted.n],
               wanted.message_hash,
               case when wanted.status <> 'queued' then now() end
          from (select unnested.id, unnested.n, unnested.item_id, unnested.recipient, unnested.message_hash,
                       case
                           when unnested.verdict is not null then unnested.verdict
                           when unnested.place = any (v_suppressed) then 'skipped'
                           else 'queued'
                       end as status,
                       case
                           when unnested.verdict is not null then left(unnested.reason, 2000)
                           when unnested.place = any (v_suppressed) then 'the lead is suppressed'
                       end as reason
                  from unnest(p_outbox_ids, v_windows, v_items, p_recipients, p_message_hashes, p_verdicts, p_reasons)
                       with ordinality as unnested (id, n, item_id, recipient, message_hash, verdict, reason, place)
                 where unnested.item_id is not null) as wanted
            on conflict (tenant_id, workspace_id, idempotency_key) do nothing
     returning item.job_id, item.id, item.recipient_id, item.idempotency_key,
               case item.status when 'queued' then 'reserved' else item.status end;
    get diagnostics v_inserted = row_count;
    if v_inserted = v_wanted then
        return;
    end if;

    -- Keys that exist. A row under the very id that this caller made up is its own: it has asked before, its commit went
    -- through, and the answer was lost on the way. Nobody can have called for it, because nobody was told.
    return query
        select item.job_id, item.id, item.recipient_id, item.idempotency_key,
               case
                   when item.status = 'queued' and item.id = wanted.id and item.reserved_by = p_worker_id
                        and item.attempt = p_attempts[wanted.n] and item.in_doubt_since is null
                        then 'reserved'
                   else item.status
               end
          from unnest(p_outbox_ids, v_windows, v_items) as wanted (id, n, item_id)
               join execution.channel_outbox as item
                 on item.tenant_id = any (array[v_tenant_ids[wanted.n]])
                and item.workspace_id = any (array[v_workspace_ids[wanted.n]])
                and item.idempotency_key = any (array[encode(sha256(convert_to(
                        v_prefixes[wanted.n] || wanted.item_id::text || v_suffixes[wanted.n], 'UTF8')), 'hex')])
         where wanted.item_id is not null
           -- What was inserted a moment ago by this very statement's sibling is not a conflict. What was settled in this
           -- transaction under another id is one.
           and (item.xmin <> pg_current_xact_id()::xid or item.id <> wanted.id);
end
$$;

-- Settles items with what their calls came to: `sent`, `called`, `posted`, `failed`, or `in_doubt`, which leaves the row
-- `queued`. A row is settled by the worker that reserved it, whether or not it still holds the job: an answer to a call
-- is evidence. Answers with the rows that it changed; the others were settled before.
create function execution.finalize_outbox_items(
    p_worker_id text, p_outbox_ids uuid[], p_statuses text[], p_message_ids text[], p_errors text[])
returns setof uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_changed integer;
    v_doubted integer := 0;
begin
    if not coalesce(p_statuses <@ array['sent', 'called', 'posted', 'failed', 'in_doubt'], false)
       or cardinality(p_statuses) <> cardinality(p_outbox_ids)
    then
        raise exception 'an item is settled as sent, called, posted, failed or in_doubt, each with a word of its own'
            using errcode = 'invalid_parameter_value';
    end if;
    if array_position(p_statuses, 'in_doubt') is not null then
        return query
            with doubted as (
                update execution.channel_outbox as item
                   set in_doubt_since = now(),
                       error = left(settled.error, 2000)
                  from unnest(p_outbox_ids, p_statuses, p_errors) as settled (id, status, error)
                 where item.id = any (array[settled.id])
                   and settled.status = 'in_doubt'
                   and item.status = 'queued'
                   and item.in_doubt_since is null
                   and item.reserved_by = p_worker_id
             returning item.id, item.tenant_id, item.run_id, item.job_id, item.error
            ), logged as (
                insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
                select doubted.tenant_id, doubted.run_id, doubted.job_id, doubted.id, p_worker_id, 'item.in_doubt', doubted.error
                  from doubted
            )
            select doubted.id from doubted;
        get diagnostics v_doubted = row_count;
    end if;

    return query
        update execution.channel_outbox as item
           set status = settled.status,
               provider_message_id = left(settled.provider_message_id, 500),
               error = left(settled.error, 2000),
               finalized_at = now(),
               in_doubt_since = null
          from unnest(p_outbox_ids, p_statuses, p_message_ids, p_errors)
               as settled (id, status, provider_message_id, error)
         where item.id = any (array[settled.id])
           and settled.status <> 'in_doubt'
           and item.status = 'queued'
           and item.reserved_by = p_worker_id
     returning item.id;
    get diagnostics v_changed = row_count;

    -- An answer that came after somebody had decided otherwise changes nothing, and is not thrown away either.
    if v_changed + v_doubted < cardinality(p_outbox_ids) then
        insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
        select item.tenant_id, item.run_id, item.job_id, item.id, p_worker_id, 'item.contradicted',
               'the provider''s answer was: ' || settled.status || coalesce(' ' || settled.provider_message_id, '')
          from unnest(p_outbox_ids, p_statuses, p_message_ids) as settled (id, status, provider_message_id)
               join execution.channel_outbox as item on item.id = any (array[settled.id])
         where settled.status <> 'in_doubt'
           and item.reserved_by = p_worker_id
           and item.status <> 'queued'
           and item.status <> settled.status;
    end if;
end
$$;

-- Raises unless this worker holds this job under this attempt.
create function execution.require_held(p_job_id uuid, p_worker_id text, p_attempt integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform
       from execution.job_queue as job
      where job.id = p_job_id
        and job.status = 'locked'
        and job.locked_by = p_worker_id
        and job.attempts = p_attempt
        for no key update;
    if not found then
        raise exception 'job % is not held by % under attempt %', p_job_id, coalesce(p_worker_id, 'null'),
                        coalesce(p_attempt::text, 'null')
            using errcode = 'PR001',
                  hint = 'A lock lasts five minutes without a heartbeat; it may have gone stale and been taken over.';
    end if;
end
$$;

-- Ends a job whose items have all been tried. Computes its status, and its run's, from the items: completed, dead, or failed
-- with another attempt to come while something is in doubt.
create function execution.complete_job(
    p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval default interval '1 minute')
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform execution.require_held(p_job_id, p_worker_id, p_attempt);
    return execution.end_attempt(p_job_id, p_worker_id, p_retry_after, null);
end
$$;

-- Ends an attempt that could not go on. The job comes again, or is dead when no attempts are left.
create function execution.fail_job(
    p_job_id uuid, p_worker_id text, p_attempt integer, p_error text, p_retry_after interval default interval '1 minute')
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform execution.require_held(p_job_id, p_worker_id, p_attempt);
    return execution.end_attempt(p_job_id, p_worker_id, p_retry_after, coalesce(nullif(btrim(p_error), ''), 'failed'));
end
$$;

-- Hands a job back before its end: the worker is stopping, or cannot do this kind of job. It burns no attempt.
create function execution.release_job(
    p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval default interval '0')
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform execution.require_held(p_job_id, p_worker_id, p_attempt);
    perform execution.doubt_leftovers(p_job_id, p_worker_id);
    update execution.job_queue
       set status = 'queued',
           attempts = attempts - 1,
           locked_by = null,
           locked_at = null,
           run_after = greatest(run_after, now() + p_retry_after)
     where id = p_job_id;
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action)
    select job.tenant_id, job.run_id, job.id, p_worker_id, 'job.released'
      from execution.job_queue as job
     where job.id = p_job_id;
end
$$;

-- Since when an item is in doubt: since it was marked so; or since its worker was last heard of, when that is a minute ago;
-- or since it was reserved, when its job has gone on without it. Null while its worker is at work, and after its end.
create function execution.doubted_since(
    p_item execution.channel_outbox, p_job_status text, p_locked_by text, p_locked_at timestamptz, p_job_attempts integer)
returns timestamptz
language sql
stable
parallel safe
return case
           when (p_item).status <> 'queued' then null
           when (p_item).in_doubt_since is not null then (p_item).in_doubt_since
           when p_job_status = 'locked' and p_locked_by = (p_item).reserved_by and p_job_attempts = (p_item).attempt
               then case
                        when p_locked_at < now() - interval '60 seconds' then greatest(p_locked_at, (p_item).created_at)
                    end
           else (p_item).created_at
       end;

-- Settles an item in doubt by evidence: as `sent` (the channel's word for success is used) or as `failed`. That it was
-- done may be shown at any time; that it was not, only when the quiet time is over and nothing can arrive any more.
create function execution.resolve_in_doubt(
    p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_item record;
    v_status text;
begin
    if coalesce(p_as, '') not in ('sent', 'failed') then
        raise exception 'an item is resolved as sent or as failed, not as %', coalesce(p_as, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(btrim(p_note), '') = '' or coalesce(btrim(p_actor), '') = '' then
        raise exception 'a resolution needs a note that says how it is known, and who says so'
            using errcode = 'invalid_parameter_value';
    end if;
    select item.*, run.quiet_time, job.status as job_status,
           execution.doubted_since(item, job.status, job.locked_by, job.locked_at, job.attempts) as since
      into v_item
      from execution.channel_outbox as item
           join execution.job_queue as job on job.id = item.job_id
           join execution.campaign_runs as run on run.id = item.run_id
     where item.tenant_id = v_tenant_id
       and item.id = p_outbox_id
       for no key update of item;
    if not found then
        raise exception 'there is no item %', p_outbox_id
            using errcode = 'no_data_found', hint = '`postrider in-doubt list` shows what is in doubt.';
    end if;
    if v_item.status <> 'queued' then
        raise exception 'item % is % already', p_outbox_id, v_item.status
            using errcode = 'invalid_parameter_value',
                  hint = 'An item that has ended is never reopened; `postrider trace` shows its story.';
    end if;
    if v_item.since is null then
        raise exception 'item % is not in doubt: its worker is at work', p_outbox_id
            using errcode = 'invalid_parameter_value', hint = 'Look again in a minute.';
    end if;
    if p_as = 'failed' and now() < v_item.since + v_item.quiet_time then
        raise exception 'item % may still arrive until %', p_outbox_id,
                        to_char((v_item.since + v_item.quiet_time) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
            using errcode = 'invalid_parameter_value',
                  hint = 'That it was not sent counts only after the quiet time. That it was sent counts at once.';
    end if;

    v_status := case p_as when 'sent' then execution.success_of(v_item.channel) else 'failed' end;
    update execution.channel_outbox
       set status = v_status,
           provider_message_id = left(p_provider_message_id, 500),
           error = case when p_as = 'failed' then left(p_note, 2000) end,
           finalized_at = now(),
           in_doubt_since = null
     where id = p_outbox_id;
    perform execution.audit(v_tenant_id, null, null, v_item.run_id, v_item.job_id, p_outbox_id, p_actor,
                            'item.resolved_as_' || v_status, p_note);
    -- Its job waits for nothing else any more: it may complete now.
    if v_item.job_status = 'failed'
       and not exists (select
                         from execution.channel_outbox as item
                        where item.job_id = v_item.job_id
                          and item.status = 'queued')
    then
        update execution.job_queue
           set run_after = least(run_after, now())
         where id = v_item.job_id
           and status = 'failed';
    end if;
    return v_status;
end
$$;

-- How far runs of the tenant are. A job that is done through and through has its counts in its own row, and only the items
-- of the others are counted: a look costs as much as what is under way, however much is done. A dead job may leave items
-- in doubt, which are settled after its counts were written, so its items are counted until none is left.
--
-- The planner does not know that most jobs are passed over, and would compile a plan for all of them.
create function execution.run_progress(p_run_ids uuid[])
returns table (
    run_id uuid, intended bigint, jobs_queued bigint, jobs_locked bigint, jobs_retrying bigint, jobs_completed bigint,
    jobs_dead bigint, succeeded bigint, failed bigint, skipped bigint, in_doubt bigint, in_flight bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    select run.id,
           run.intended,
           jobs.*
      from execution.campaign_runs as run
           cross join lateral (
               select count(*) filter (where job.status = 'queued'),
                      count(*) filter (where job.status = 'locked'),
                      count(*) filter (where job.status = 'failed'),
                      count(*) filter (where job.status = 'completed'),
                      count(*) filter (where job.status = 'dead'),
                      coalesce(sum(case when done.is_done then job.succeeded else items.succeeded end), 0)::bigint,
                      coalesce(sum(case when done.is_done then job.failed else items.failed end), 0)::bigint,
                      coalesce(sum(case when done.is_done then job.skipped else items.skipped end), 0)::bigint,
                      coalesce(sum(items.in_doubt), 0)::bigint,
                      coalesce(sum(items.reserved - items.in_doubt), 0)::bigint
                 from execution.job_queue as job
                      cross join lateral (
                          select case job.status
                                     when 'completed' then true
                                     when 'dead' then job.succeeded + job.failed + job.skipped = cardinality(job.item_ids)
                                     else false
                                 end as is_done) as done
                      cross join lateral (
                          select count(*) filter (where item.status in ('sent', 'called', 'posted')) as succeeded,
                                 count(*) filter (where item.status = 'failed') as failed,
                                 count(*) filter (where item.status = 'skipped') as skipped,
                                 count(*) filter (where item.status = 'queued') as reserved,
                                 count(execution.doubted_since(item, job.status, job.locked_by, job.locked_at, job.attempts))
                                     as in_doubt
                            from execution.channel_outbox as item
                           where item.job_id = job.id
                             and not done.is_done) as items
                where job.tenant_id = run.tenant_id
                  and job.run_id = run.id) as jobs
     where run.tenant_id = tenancy.required_tenant_id()
       and run.id = any (p_run_ids)
$$;

-- The launch certificate: whether the run has ended, whether every intended item has, and whether a second call is
-- impossible, with the counts that show it.
create function execution.verify_launch(p_run_id uuid)
returns table (
    run_id uuid, run_status text, intended bigint, sent bigint, called bigint, posted bigint, failed bigint, skipped bigint,
    in_doubt bigint, missing bigint, run_is_terminal boolean, every_item_is_terminal boolean, duplicates_are_impossible boolean,
    launched boolean)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if not exists (select from execution.campaign_runs as run where run.id = p_run_id and tenancy.may_act_for(run.tenant_id)) then
        raise exception 'there is no run %', p_run_id using errcode = 'no_data_found';
    end if;
    return query
        with items as (
            select count(*) filter (where item.status = 'sent') as sent,
                   count(*) filter (where item.status = 'called') as called,
                   count(*) filter (where item.status = 'posted') as posted,
                   count(*) filter (where item.status = 'failed') as failed,
                   count(*) filter (where item.status = 'skipped') as skipped,
                   count(*) filter (where item.status = 'queued') as in_doubt,
                   count(distinct item.recipient_id) as known
              from execution.channel_outbox as item
             where item.run_id = p_run_id
        ), guarded as (
            -- The wall is the unique key, and the triggers that keep rows and their keys where they are.
            select count(*) = 5 as holds
              from (select from pg_constraint as wall
                     where wall.conrelid = 'execution.channel_outbox'::regclass
                       and wall.conname = 'channel_outbox_one_row_per_key'
                       and pg_get_constraintdef(wall.oid) = 'UNIQUE (tenant_id, workspace_id, idempotency_key)'
                     union all
                    select from pg_trigger as wall
                     where wall.tgrelid = 'execution.channel_outbox'::regclass
                       and wall.tgname in ('channel_outbox_ends_are_final', 'channel_outbox_reservations_are_facts',
                                           'channel_outbox_is_never_removed_from', 'channel_outbox_is_never_emptied')
                       and wall.tgenabled in ('O', 'A')) as walls
        )
        select run.id,
               run.status,
               run.intended::bigint,
               items.sent, items.called, items.posted, items.failed, items.skipped, items.in_doubt,
               run.intended - items.known,
               run.status in ('completed', 'partial', 'failed'),
               items.in_doubt = 0 and run.intended = items.known,
               guarded.holds,
               run.status in ('completed', 'partial', 'failed') and items.in_doubt = 0 and run.intended = items.known
               and guarded.holds
          from execution.campaign_runs as run, items, guarded
         where run.id = p_run_id;
end
$$;

-- How much waits and how much is in doubt, over all tenants, for the metrics.
create function execution.measure_jobs()
returns table (jobs_waiting bigint, jobs_locked bigint, oldest_lock_seconds double precision, items_in_doubt bigint,
               oldest_doubt_seconds double precision)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select (select count(*) from execution.job_queue where status = 'queued'),
           (select count(*) from execution.job_queue where status = 'locked'),
           (select coalesce(extract(epoch from now() - min(locked_at)), 0) from execution.job_queue where status = 'locked'),
           (select count(*) from execution.channel_outbox where in_doubt_since is not null),
           (select coalesce(extract(epoch from now() - min(in_doubt_since)), 0)
              from execution.channel_outbox
             where in_doubt_since is not null)
$$;

revoke all on all functions in schema execution from public;
grant execute on function
    execution.key_time(timestamptz),
    execution.outbox_key(uuid, uuid, text, timestamptz),
    execution.success_of(text),
    execution.doubted_since(execution.channel_outbox, text, text, timestamptz, integer),
    execution.run_progress(uuid[]),
    execution.verify_launch(uuid)
    to postrider_app, postrider_worker, postrider_read;
grant execute on function
    execution.create_campaign(uuid, uuid, text, boolean, jsonb, text),
    execution.deploy_campaign(uuid, text, text, uuid, integer),
    execution.resolve_in_doubt(uuid, text, text, text, text)
    to postrider_app;
grant execute on function
    execution.claim_queued_jobs(text, integer, uuid[]),
    execution.heartbeat_jobs(text, uuid[], integer[]),
    execution.begin_outbox_items(text, uuid[], integer[], integer[], integer[], uuid[], text[], bytea[], text[], text[]),
    execution.finalize_outbox_items(text, uuid[], text[], text[], text[]),
    execution.complete_job(uuid, text, integer, interval),
    execution.fail_job(uuid, text, integer, text, interval),
    execution.release_job(uuid, text, integer, interval),
    execution.measure_jobs()
    to postrider_worker;
