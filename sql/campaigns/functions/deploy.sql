-- Deployment of phases: snapshots the audience and creates the run and its send jobs.

create or replace function execution.runs_since_all(p_tenant_id uuid, p_phase_id uuid)
returns uuid[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select array(select run.id
                   from execution.campaign_runs as run
                  where run.tenant_id = p_tenant_id
                    and run.phase_id = p_phase_id
                    and run.number >= (select max(whole.number)
                                         from execution.campaign_runs as whole
                                        where whole.tenant_id = p_tenant_id
                                          and whole.phase_id = p_phase_id
                                          and whole.cause <> 'retry')
                  order by run.number desc)
$$;
comment on function execution.runs_since_all(uuid, uuid) is
    'Returns the runs of a phase since it was last sent to its whole audience, newest first.';
revoke all on function execution.runs_since_all(uuid, uuid) from public;

create or replace function execution.create_run(
    p_tenant_id uuid, p_phase_id uuid, p_run_id uuid, p_cause text, p_job_size integer, p_actor text,
    p_include_canceled boolean default false)
returns uuid
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_phase record;
    v_audience uuid[];
    v_members bigint;
    v_retired text;
begin
    if p_job_size is null or p_job_size not between 1 and 10000 then
        raise exception 'a send job has between 1 and 10000 items, not %', coalesce(p_job_size::text, 'null')
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
    select account.name
      into v_retired
      from tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and account.id in (v_phase.provider_account_id, v_phase.failover_account_id)
       and account.retired_at is not null
     limit 1;
    if found then
        raise exception 'the provider account `%` of phase `%` is retired, so no new run uses it', v_retired, v_phase.phase
            using errcode = 'invalid_parameter_value', hint = '`postrider accounts retire --undo` reinstates it.';
    end if;

    -- The audience, ordered by id. Of several leads with the same address only the first is addressed, so that a
    -- person who is in a list twice gets one message. A social phase without a list is one post.
    if p_cause = 'retry' then
        -- Exclude recipients that got the message in any of these runs, or may have. Without p_include_canceled also those that
        -- no run tried.
        select array_agg(failed.recipient_id order by failed.recipient_id), count(*)
          into v_audience, v_members
          from (select item.recipient_id
                  from execution.channel_outbox as item
                 where item.tenant_id = p_tenant_id
                   and item.run_id = any (execution.runs_since_all(p_tenant_id, p_phase_id))
                 group by item.recipient_id
                having bool_and(item.status = 'failed'
                                or execution.was_canceled(item.status, item.error, item.reserved_by))
                   and (p_include_canceled or bool_or(item.status = 'failed'))) as failed;
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

    -- Signs the links to unsubscribe of this run.
    if v_phase.channel = 'email' then
        perform execution.make_suppression_key(p_tenant_id);
    end if;
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

    -- Check first: an insert alone would wait for a worker that is updating the row of this tenant.
    insert into execution.claim_order (tenant_id)
    select p_tenant_id
     where not exists (select from execution.claim_order where tenant_id = p_tenant_id)
        on conflict do nothing;
    perform execution.audit(p_tenant_id, v_phase.campaign_id, v_phase.id, p_run_id, null, null, p_actor, 'run.deployed',
                            cardinality(v_audience) || ' items');
    return p_run_id;
end
$$;
comment on function execution.create_run(uuid, uuid, uuid, text, integer, text, boolean) is
    'Creates a run of a delivery and its send jobs: of the whole audience or, for a retry, of the items that '
    'certainly failed, with p_include_canceled also of those that were canceled. Returns null if a retry has no such items. '
    'The caller has locked the campaign.';
revoke all on function execution.create_run(uuid, uuid, uuid, text, integer, text, boolean) from public;

create or replace function execution.start_phase(
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
        select run.intended
          into v_items
          from execution.campaign_runs as run
         where run.tenant_id = p_tenant_id
           and run.id = v_run_id;
    end if;
    -- The phase was started, so the reason why it could not be started automatically no longer holds.
    update execution.campaigns
       set not_advanced = null
     where tenant_id = p_tenant_id
       and id = p_campaign_id
       and not_advanced is not null;
    return execution.enter_phase_state(p_tenant_id, p_campaign_id, p_phase_id, 'start', v_run_id, p_actor,
                                       jsonb_strip_nulls(jsonb_build_object('items', v_items, 'reason', p_reason)));
end
$$;
comment on function execution.start_phase(uuid, uuid, uuid, uuid, integer, text, text) is
    'Starts a phase that was not started: creates a run of the whole audience for a delivery, and only changes the '
    'state of an external phase. Returns the number of the event. The caller has locked the campaign and the phase.';
revoke all on function execution.start_phase(uuid, uuid, uuid, uuid, integer, text, text) from public;

create or replace function execution.deploy_campaign(
    p_tenant_id uuid,
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
    v_actor constant text := coalesce(nullif(btrim(p_actor), ''), session_user::text);
    v_run_id constant uuid := coalesce(p_run_id, gen_random_uuid());
    v_phase record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- With this lock, two concurrent deployments create one run.
    perform
       from execution.campaigns
      where tenant_id = p_tenant_id
        and id = p_campaign_id
        for no key update;
    if not found then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;
    select phase.*
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = p_campaign_id
       and (phase.phase = p_phase
            -- Without a name: the phase that is in progress or paused, else the first that was not started.
            or p_phase is null
               and phase.position = (select candidate.position
                                       from execution.campaign_phases as candidate
                                      where candidate.tenant_id = p_tenant_id
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
                           where phase.tenant_id = p_tenant_id and phase.campaign_id = p_campaign_id);
    end if;
    if v_phase.kind <> 'delivery' then
        raise exception 'phase `%` is done by another service and is not deployed', v_phase.phase
            using errcode = 'invalid_parameter_value', hint = 'Deploy a phase that is a delivery, or start this one.';
    end if;
    if v_phase.status in ('in_progress', 'paused') then
        return (select run.id
                  from execution.campaign_runs as run
                 where run.tenant_id = p_tenant_id
                   and run.phase_id = v_phase.id
                 order by run.number desc
                 limit 1);
    end if;
    if v_phase.status <> 'not_started' then
        raise exception 'phase `%` is % and is not deployed twice', v_phase.phase, v_phase.status
            using errcode = 'invalid_parameter_value',
                  hint = case v_phase.status
                             when 'failed' then '`retry` sends what failed.'
                             else '`rerun` sends the message to every lead again.'
                         end;
    end if;
    perform execution.start_phase(p_tenant_id, p_campaign_id, v_phase.id, v_run_id, p_job_size, v_actor);
    return v_run_id;
end
$$;
comment on function execution.deploy_campaign(uuid, uuid, text, text, uuid, integer) is
    'Deploys a phase of a campaign of the tenant, or without a name the next one, and returns its run. A phase that is in progress or paused is '
    'not deployed again; its newest run is returned.';
revoke all on function execution.deploy_campaign(uuid, uuid, text, text, uuid, integer) from public;
grant execute on function execution.deploy_campaign(uuid, uuid, text, text, uuid, integer) to postrider_app;
