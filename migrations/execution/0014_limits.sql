-- What accounts may be asked: limits, turns that all processes share, a circuit that opens when a provider fails, waiting without
-- burning attempts, and a second account for what the first provably did not send.
-- Safe beside running workers: columns without values or with a constant one, a new table, functions with the same answers as
-- before. The one function with another signature answers old calls as it did; while it is exchanged, its callers wait.

-- What an account may be asked, as postrider_model::limits reads it.
alter table tenancy.provider_accounts
    add column limits jsonb not null default '{}',
    add constraint provider_accounts_limits_are_an_object check (jsonb_typeof(limits) = 'object');
grant select (limits) on tenancy.provider_accounts to postrider_app, postrider_read;

-- Where items go that the first account provably did not send.
alter table execution.campaign_phases
    add column failover_account_id uuid,
    add constraint campaign_phases_fail_over_to_an_account
        foreign key (tenant_id, failover_account_id) references tenancy.provider_accounts (tenant_id, id),
    add constraint campaign_phases_fail_over_to_another_account check (failover_account_id <> provider_account_id);
alter table execution.campaign_runs add column failover_account_id uuid;
create or replace trigger campaign_runs_are_facts
    before update of id, tenant_id, workspace_id, campaign_id, phase_id, channel, asset_id, provider_account_id, provider,
                     failover_account_id, scheduled_for, quiet_time, key_part, intended, same_address, correlation_id, created_at
    on execution.campaign_runs
    for each row
    execute function tenancy.refuse_change('what was deployed stays as it was deployed');

-- Why a queued job is not due yet, when an account's limits are the reason. A claim forgets it.
alter table execution.job_queue
    add column waits_for text,
    add constraint job_queue_waits_for_check
        check (waits_for in ('rate', 'daily', 'hours', 'retry_after', 'circuit'));

-- An item moves once, before its second call, and only while it is known that the first one did nothing.
create trigger channel_outbox_moves_once
    before update of moved_to_account_id on execution.channel_outbox
    for each row
    when (old.moved_to_account_id is not null or old.status <> 'queued' or old.in_doubt_since is not null
          or new.moved_to_account_id is null)
    execute function tenancy.refuse_change('an item moves to another account once, and only while nothing was sent');

-- How an account stands at this moment, for all processes: turns that are left, what was used today, how long its provider asked
-- to wait, and its circuit. Rows come with the first question and go with their account.
create table execution.account_states (
    tenant_id          uuid             not null,
    account_id         uuid             not null,
    -- Turns that are there. Below zero: turns that were given ahead of their time, to whoever waits for them.
    tokens             double precision not null default 0,
    refilled_at        timestamptz,
    day                date,
    used_today         bigint           not null default 0,
    wait_until         timestamptz,
    wait_reason        text,
    -- Open until then; half open after that, until a call is answered. Null: closed.
    circuit_open_until timestamptz,
    circuit_reason     text,
    circuit_openings   integer          not null default 0,
    -- While the circuit is half open: whose call is the one to find out, and until when it has time for it.
    probe_job_id       uuid,
    probe_until        timestamptz,
    primary key (tenant_id, account_id),
    constraint account_states_belong_to_an_account
        foreign key (tenant_id, account_id) references tenancy.provider_accounts (tenant_id, id) on delete cascade
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
create index account_states_circuits on execution.account_states (circuit_open_until) where circuit_open_until is not null;
select tenancy.protect('execution.account_states');
grant select on execution.account_states to postrider_app, postrider_worker, postrider_read;

-- Sets what an account of the tenant may be asked. Jobs that waited for the old limits are due at once. False when there is no
-- such account.
create function tenancy.limit_provider_account(p_id uuid, p_limits jsonb, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_zone constant text := coalesce(p_limits #>> '{hours,time_zone}', p_limits ->> 'time_zone');
begin
    if not exists (select from pg_timezone_names where name = v_zone) and v_zone is not null then
        raise exception 'the database knows no time zone `%`', v_zone
            using errcode = 'invalid_parameter_value', hint = 'Write it like `Europe/Berlin`.';
    end if;
    update tenancy.provider_accounts
       set limits = p_limits
     where tenant_id = v_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'account.limited', 'account:' || p_id, p_limits::text);
    update execution.job_queue as job
       set run_after = now(),
           waits_for = null
     where job.tenant_id = v_tenant_id
       and job.status = 'queued'
       and job.waits_for in ('rate', 'daily', 'hours')
       and job.run_after > now()
       and job.run_id in (select run.id
                            from execution.campaign_runs as run
                           where run.tenant_id = v_tenant_id
                             and p_id in (run.provider_account_id, run.failover_account_id));
    return true;
end
$$;

-- A campaign with its phases, in the tenant of the context; all of it or nothing. A phase is a JSON object with
-- id, phase, kind, channel, asset_id, list, provider_account, failover_account, failure_tolerance, scheduled_for,
-- quiet_time_seconds; lists and accounts are given by name. What is wrong is said with the name of the phase.
create or replace function execution.create_campaign(
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
    v_failover_id uuid;
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
        v_failover_id := null;
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
            if v_phase ->> 'failover_account' is not null then
                select account.id
                  into v_failover_id
                  from tenancy.provider_accounts as account
                 where account.tenant_id = v_tenant_id
                   and account.workspace_id = p_workspace_id
                   and account.name = v_phase ->> 'failover_account';
                if not found then
                    raise exception 'phase `%`: there is no provider account `%` to fail over to', v_phase ->> 'phase',
                                    v_phase ->> 'failover_account'
                        using errcode = 'no_data_found', hint = 'Add one with `postrider accounts add`.';
                end if;
                if v_failover_id = v_account_id then
                    raise exception 'phase `%` fails over to the account that it uses anyway', v_phase ->> 'phase'
                        using errcode = 'invalid_parameter_value', hint = 'Name another account, or none.';
                end if;
            end if;
        end if;
        insert into execution.campaign_phases
               (id, tenant_id, workspace_id, campaign_id, position, phase, kind, channel, asset_id, list_id,
                provider_account_id, failover_account_id, failure_tolerance, scheduled_for, quiet_time)
        values ((v_phase ->> 'id')::uuid, v_tenant_id, p_workspace_id, p_id, v_position, v_phase ->> 'phase', v_kind,
                v_channel, v_asset_id, v_list_id, v_account_id, v_failover_id,
                coalesce((v_phase ->> 'failure_tolerance')::numeric, 0.05),
                (v_phase ->> 'scheduled_for')::timestamptz,
                coalesce(make_interval(secs => (v_phase ->> 'quiet_time_seconds')::double precision),
                         interval '11 minutes'));
    end loop;
end
$$;

-- Deploys a phase: snapshots the audience and makes, in one transaction, one run and its jobs. Deploying a phase that
-- is in progress changes nothing and answers with its run. Nothing here ever moves a run past `queued`.
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
            failover_account_id, scheduled_for, quiet_time, key_part, intended, same_address, correlation_id)
    values (v_run_id, v_tenant_id, v_phase.workspace_id, p_campaign_id, v_phase.id, v_phase.channel, v_phase.asset_id,
            v_phase.provider_account_id, v_phase.provider, v_phase.failover_account_id, v_phase.scheduled_for, v_phase.quiet_time,
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
    -- Looked for first: an insert alone would wait for a worker that is just noting this tenant's turn.
    insert into execution.turns (tenant_id)
    select v_tenant_id
     where not exists (select from execution.turns where tenant_id = v_tenant_id)
        on conflict do nothing;
    perform execution.audit(v_tenant_id, p_campaign_id, v_phase.id, v_run_id, null, null, v_actor, 'run.deployed',
                            cardinality(v_audience) || ' items');
    perform execution.audit(v_tenant_id, p_campaign_id, v_phase.id, v_run_id, null, null, v_actor, 'phase.in_progress',
                            v_phase.phase);
    return v_run_id;
end
$$;

-- Takes up to `p_limit` jobs, tenant by tenant in turns: whose turn was longest ago comes first, so that a tenant with
-- a million items does not starve one with ten. Before that, locks older than five minutes are taken away and retries
-- that are due are queued again. An attempt is counted here, when it begins, so that a job that kills its worker does
-- not come for ever.
--
-- `p_except` are tenants that have enough of this worker's attention already, `p_except_runs` runs whose account has.
--
-- Rows are looked up with `= any (array[…])` instead of `=`, for the reason that 0009 gives.
drop function execution.claim_queued_jobs(text, integer, uuid[]);
create function execution.claim_queued_jobs(
    p_worker_id text, p_limit integer default 10, p_except uuid[] default '{}', p_except_runs uuid[] default '{}')
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
set plan_cache_mode = force_generic_plan
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
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
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
         where job.id = any (array[due.id])
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
                   -- In a form of which the planner expects nothing: it shall read them in their order, and stop.
                   and case when cardinality(p_except_runs) = 0 then true else job.run_id <> all (p_except_runs) end
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
           locked_at = now(),
           waits_for = null
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
               join execution.campaign_runs as run on run.id = any (array[job.run_id])
         where job.id = any (v_ids);
end
$$;

-- The accounts of a job that this worker holds: its own, and the one it may fail over to. Content and secret of its own account
-- come with read_job.
create function execution.read_accounts(p_worker_id text, p_job_id uuid, p_attempt integer)
returns table (
    account_id uuid, is_failover boolean, provider text, settings jsonb, sealed_secret bytea, limits jsonb,
    wait_seconds double precision, circuit_seconds double precision)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
        select account.id, used.is_failover, account.provider, account.settings, account.sealed_secret, account.limits,
               extract(epoch from nullif(greatest(state.wait_until, now()), now()) - now())::double precision,
               extract(epoch from state.circuit_open_until - now())::double precision
          from execution.job_queue as job
               join execution.campaign_runs as run on run.id = job.run_id
               cross join lateral (values (run.provider_account_id, false), (run.failover_account_id, true))
                          as used (id, is_failover)
               join tenancy.provider_accounts as account on account.tenant_id = run.tenant_id and account.id = used.id
               left join execution.account_states as state
                      on state.tenant_id = account.tenant_id
                     and state.account_id = account.id
         where job.id = p_job_id
           and job.status = 'locked'
           and job.locked_by = p_worker_id
           and job.attempts = p_attempt;
end
$$;

-- Which items of a job have a row already, so that nobody takes a turn for them.
create function execution.read_begun_items(p_worker_id text, p_job_id uuid, p_attempt integer)
returns setof uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select item.recipient_id
      from execution.job_queue as job
           join execution.channel_outbox as item on item.job_id = job.id
     where job.id = p_job_id
       and job.status = 'locked'
       and job.locked_by = p_worker_id
       and job.attempts = p_attempt
       and item.recipient_id is not null
$$;

-- The account of a held job, or of its fail-over: raises unless this worker holds this job under this attempt. The row with the
-- account's state is there afterwards.
create function execution.held_account(
    p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, out tenant_id uuid, out account_id uuid)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    select job.tenant_id, case when p_failover then run.failover_account_id else run.provider_account_id end
      into tenant_id, account_id
      from execution.job_queue as job
           join execution.campaign_runs as run on run.id = job.run_id
     where job.id = p_job_id
       and job.status = 'locked'
       and job.locked_by = p_worker_id
       and job.attempts = p_attempt;
    if not found or account_id is null then
        raise exception 'job % is not held by % under attempt %', p_job_id, coalesce(p_worker_id, 'null'),
                        coalesce(p_attempt::text, 'null')
            using errcode = 'PR001',
                  hint = 'A lock lasts five minutes without a heartbeat; it may have gone stale and been taken over.';
    end if;
    -- Looked for first: an insert alone would wait for whoever is just making it.
    if not exists (select
                     from execution.account_states as state
                    where state.tenant_id = held_account.tenant_id
                      and state.account_id = held_account.account_id)
    then
        insert into execution.account_states (tenant_id, account_id)
        values (held_account.tenant_id, held_account.account_id)
            on conflict do nothing;
    end if;
end
$$;

-- Turns at an account, for a job that this worker holds: how many of those wanted, how long to wait before they are used, or why
-- there are none and how long there will be none. Times are the database's.
--
-- The account's own limits count; `p_rate` is what the provider allows where the account says nothing. Turns may be given up to a
-- second ahead of their time: whoever gets them waits, and nobody has to ask again and again meanwhile.
--
-- `p_again`: for an item that is reserved already and provably was not sent. It has its turn counted and waits for the rate,
-- and nothing else holds it up.
create function execution.take_turns(
    p_worker_id text, p_job_id uuid, p_attempt integer, p_wanted integer, p_failover boolean default false,
    p_rate double precision default null, p_again boolean default false)
returns table (granted integer, wait_seconds double precision, why text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    c_ahead constant double precision := 1.0;
    v_held record;
    v_state execution.account_states;
    v_limits jsonb;
    v_now timestamptz;
    v_rate double precision;
    v_burst double precision;
    v_zone text;
    v_today date;
    v_tokens double precision;
    v_is_probe boolean := false;
begin
    if p_wanted is null or p_wanted < 1 then
        raise exception 'at least one turn must be wanted, not %', coalesce(p_wanted::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    select * into strict v_held from execution.held_account(p_worker_id, p_job_id, p_attempt, p_failover);
    select account.limits
      into v_limits
      from tenancy.provider_accounts as account
     where account.tenant_id = v_held.tenant_id
       and account.id = v_held.account_id;
    select state.*
      into strict v_state
      from execution.account_states as state
     where state.tenant_id = v_held.tenant_id
       and state.account_id = v_held.account_id
       for no key update;
    -- Of a rate, a crash of the server may take back the last moment: the bucket is then a little too full, once. A day's calls are
    -- counted, and are kept.
    if v_limits ->> 'daily' is null then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    -- After the lock: whoever came before has used what was there.
    v_now := clock_timestamp();
    granted := p_wanted;
    wait_seconds := 0;

    if not p_again then
        if v_state.wait_until > v_now then
            return query select 0, extract(epoch from v_state.wait_until - v_now)::double precision, 'retry_after';
            return;
        end if;
        if v_state.circuit_open_until > v_now then
            return query select 0, extract(epoch from v_state.circuit_open_until - v_now)::double precision, 'circuit';
            return;
        end if;
        if v_state.circuit_open_until is not null then
            if v_state.probe_until > v_now and v_state.probe_job_id <> p_job_id then
                return query select 0, 0.5::double precision, 'circuit';
                return;
            end if;
            v_is_probe := true;
            granted := 1;
        end if;
    end if;

    v_zone := coalesce(v_limits #>> '{hours,time_zone}', v_limits ->> 'time_zone', 'UTC');
    v_today := (v_now at time zone v_zone)::date;
    if v_today is distinct from v_state.day then
        v_state.used_today := 0;
    end if;
    if v_limits ->> 'daily' is not null and not p_again then
        granted := least(granted, (v_limits ->> 'daily')::bigint - v_state.used_today);
        if granted < 1 then
            return query
                select 0, extract(epoch from (v_today + 1)::timestamp at time zone v_zone - v_now)::double precision, 'daily';
            return;
        end if;
    end if;

    v_rate := coalesce((v_limits ->> 'rate_per_second')::double precision, p_rate);
    if v_rate is not null then
        v_burst := greatest(coalesce((v_limits ->> 'burst')::double precision, v_rate / 5), 1);
        v_tokens := case
                        -- The first question finds a full bucket.
                        when v_state.refilled_at is null then v_burst
                        else least(v_burst, v_state.tokens + v_rate * greatest(extract(epoch from v_now - v_state.refilled_at), 0))
                    end;
        granted := least(granted, floor(v_tokens + v_rate * c_ahead));
        if granted < 1 then
            granted := 0;
            wait_seconds := (1 - v_tokens) / v_rate - c_ahead;
            why := 'rate';
        else
            wait_seconds := greatest((granted - v_tokens) / v_rate, 0);
            why := case when wait_seconds > 0 then 'rate' end;
        end if;
        v_state.tokens := v_tokens - granted;
        v_state.refilled_at := v_now;
    end if;

    update execution.account_states as state
       set tokens = v_state.tokens,
           refilled_at = v_state.refilled_at,
           day = v_today,
           used_today = v_state.used_today + granted,
           probe_job_id = case when v_is_probe and granted > 0 then p_job_id else state.probe_job_id end,
           probe_until = case when v_is_probe and granted > 0 then v_now + interval '2 minutes' else state.probe_until end
     where state.tenant_id = v_held.tenant_id
       and state.account_id = v_held.account_id;
    return next;
end
$$;

-- A provider asked to be left alone: every process waits so long, an hour at most.
create function execution.hold_account(
    p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_seconds double precision, p_reason text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_held record;
begin
    select * into strict v_held from execution.held_account(p_worker_id, p_job_id, p_attempt, p_failover);
    update execution.account_states as state
       set wait_until = now() + least(p_seconds, 3600) * interval '1 second',
           wait_reason = left(p_reason, 500)
     where state.tenant_id = v_held.tenant_id
       and state.account_id = v_held.account_id
       and (state.wait_until is null or state.wait_until < now() + least(p_seconds, 3600) * interval '1 second');
end
$$;

-- Opens an account's circuit for thirty seconds, and for twice as long each further time up to ten minutes, until a call is
-- answered. One that is open stays as it is. Answers with how many seconds it is open.
create function execution.open_circuit(
    p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_reason text)
returns double precision
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_held record;
    v_until timestamptz;
begin
    select * into strict v_held from execution.held_account(p_worker_id, p_job_id, p_attempt, p_failover);
    update execution.account_states as state
       set circuit_open_until = now() + least(30 * 2 ^ least(state.circuit_openings, 10), 600) * interval '1 second',
           circuit_openings = state.circuit_openings + 1,
           circuit_reason = left(p_reason, 500),
           probe_job_id = null,
           probe_until = null
     where state.tenant_id = v_held.tenant_id
       and state.account_id = v_held.account_id
       and (state.circuit_open_until is null or state.circuit_open_until <= now())
 returning state.circuit_open_until
      into v_until;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        values (v_held.tenant_id, p_worker_id, 'account.circuit_opened', 'account:' || v_held.account_id,
                'until ' || to_char(v_until at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"') || ': ' || left(p_reason, 500));
    else
        select state.circuit_open_until
          into v_until
          from execution.account_states as state
         where state.tenant_id = v_held.tenant_id
           and state.account_id = v_held.account_id;
    end if;
    return extract(epoch from v_until - now());
end
$$;

-- A call was answered: the circuit is closed. Jobs that waited for it are due at once.
create function execution.close_circuit(p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_held record;
begin
    select * into strict v_held from execution.held_account(p_worker_id, p_job_id, p_attempt, p_failover);
    update execution.account_states as state
       set circuit_open_until = null,
           circuit_reason = null,
           circuit_openings = 0,
           probe_job_id = null,
           probe_until = null
     where state.tenant_id = v_held.tenant_id
       and state.account_id = v_held.account_id
       and state.circuit_open_until is not null;
    if not found then
        return;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_held.tenant_id, p_worker_id, 'account.circuit_closed', 'account:' || v_held.account_id);
    -- In the order of their ids, and without those that somebody is just taking.
    with waiting as (
        select job.id
          from execution.job_queue as job
               join execution.campaign_runs as run on run.id = job.run_id
         where job.tenant_id = v_held.tenant_id
           and job.status = 'queued'
           and job.waits_for = 'circuit'
           and job.run_after > now()
           and run.provider_account_id = v_held.account_id
         order by job.id
           for no key update of job skip locked
    )
    update execution.job_queue as job
       set run_after = now()
      from waiting
     where job.id = waiting.id;
end
$$;

-- How the accounts of held jobs stand, so that a process hears of what others have found out.
create function execution.read_account_states(p_worker_id text, p_job_ids uuid[])
returns table (account_id uuid, wait_seconds double precision, circuit_seconds double precision)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    select distinct state.account_id,
           extract(epoch from nullif(greatest(state.wait_until, now()), now()) - now())::double precision,
           extract(epoch from state.circuit_open_until - now())::double precision
      from unnest(p_job_ids) as held (id)
           join execution.job_queue as job on job.id = held.id
           join execution.campaign_runs as run on run.id = job.run_id
           join execution.account_states as state
             on state.tenant_id = run.tenant_id
            and state.account_id in (run.provider_account_id, run.failover_account_id)
     where job.status = 'locked'
       and job.locked_by = p_worker_id
$$;

-- How many circuits are not closed, by provider, over all tenants, for the metrics.
create function execution.measure_circuits()
returns table (provider text, open bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select account.provider, count(*)
      from execution.account_states as state
           join tenancy.provider_accounts as account
             on account.tenant_id = state.tenant_id and account.id = state.account_id
     where state.circuit_open_until is not null
     group by account.provider
$$;

-- Hands a job back because its account must wait, until it may go on; with it, where they would only be claimed to be handed back
-- again, the waiting jobs of its run. It burns no attempt. `p_limits` are the limits under which that was found; if the account
-- has others by now, the job is due at once and finds out what they mean for it. Answers with how many jobs wait now.
create function execution.put_off_job(
    p_job_id uuid, p_worker_id text, p_attempt integer, p_wait interval, p_why text, p_note text, p_whole_run boolean,
    p_limits jsonb default null)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_until timestamptz := now() + p_wait;
    v_limits jsonb;
    v_job record;
    v_others integer := 0;
begin
    perform execution.require_held(p_job_id, p_worker_id, p_attempt);
    -- Locked before it is looked at: a change that is being made is waited for.
    select account.limits
      into v_limits
      from execution.job_queue as job
           join execution.campaign_runs as run on run.id = job.run_id
           join tenancy.provider_accounts as account
             on account.tenant_id = run.tenant_id and account.id = run.provider_account_id
     where job.id = p_job_id
       for share of account;
    if p_why in ('rate', 'daily', 'hours') and v_limits <> p_limits then
        v_until := now();
    end if;
    perform execution.doubt_leftovers(p_job_id, p_worker_id);
    update execution.job_queue as job
       set status = 'queued',
           attempts = job.attempts - 1,
           locked_by = null,
           locked_at = null,
           run_after = greatest(job.run_after, v_until),
           waits_for = p_why
     where job.id = p_job_id
 returning job.tenant_id, job.run_id
      into v_job;
    if p_whole_run then
        with waiting as (
            select job.id
              from execution.job_queue as job
             where job.run_id = v_job.run_id
               and job.status = 'queued'
               -- Those that others have put off for the same reason a moment ago wait long enough.
               and job.run_after < v_until - interval '1 second'
             order by job.id
               for no key update skip locked
        )
        update execution.job_queue as job
           set run_after = v_until,
               waits_for = p_why
          from waiting
         where job.id = waiting.id;
        get diagnostics v_others = row_count;
    end if;
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action, note)
    values (v_job.tenant_id, v_job.run_id, p_job_id, p_worker_id, 'job.put_off',
            'until ' || to_char(v_until at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"') || ': ' || left(p_note, 500)
            || case when v_others > 0 then '; with ' || v_others || ' more jobs of the run' else '' end);
    return v_others + 1;
end
$$;

-- Moves items to the account that their run fails over to, before they are called there. Only what this worker has reserved,
-- what is not in doubt and has not moved before moves. Answers with those that did.
create function execution.move_outbox_items(p_worker_id text, p_outbox_ids uuid[])
returns setof uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    -- A move that a crash may take back is none, whatever the login is set to.
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    return query
        with moving as (
            select item.id, run.failover_account_id
              from unnest(p_outbox_ids) as wanted (id)
                   join execution.channel_outbox as item on item.id = any (array[wanted.id])
                   join execution.campaign_runs as run on run.id = any (array[item.run_id])
             where item.status = 'queued'
               and item.in_doubt_since is null
               and item.reserved_by = p_worker_id
               and item.moved_to_account_id is null
               and run.failover_account_id is not null
             order by item.id
               for no key update of item
        ), moved as (
            update execution.channel_outbox as item
               set moved_to_account_id = moving.failover_account_id
              from moving
             where item.id = any (array[moving.id])
               and item.status = 'queued'
               and item.in_doubt_since is null
               and item.moved_to_account_id is null
         returning item.id, item.tenant_id, item.run_id, item.job_id, item.moved_to_account_id
        ), logged as (
            insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
            select moved.tenant_id, moved.run_id, moved.job_id, moved.id, p_worker_id, 'item.moved',
                   'to account ' || moved.moved_to_account_id
              from moved
        )
        select moved.id from moved;
end
$$;

revoke all on all functions in schema execution from public;
revoke all on function tenancy.limit_provider_account(uuid, jsonb, text) from public;
grant execute on function tenancy.limit_provider_account(uuid, jsonb, text) to postrider_app;
grant execute on function
    execution.claim_queued_jobs(text, integer, uuid[], uuid[]),
    execution.read_accounts(text, uuid, integer),
    execution.read_begun_items(text, uuid, integer),
    execution.take_turns(text, uuid, integer, integer, boolean, double precision, boolean),
    execution.hold_account(text, uuid, integer, boolean, double precision, text),
    execution.open_circuit(text, uuid, integer, boolean, text),
    execution.close_circuit(text, uuid, integer, boolean),
    execution.read_account_states(text, uuid[]),
    execution.measure_circuits(),
    execution.put_off_job(uuid, text, integer, interval, text, text, boolean, jsonb),
    execution.move_outbox_items(text, uuid[])
    to postrider_worker;
