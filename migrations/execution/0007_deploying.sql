-- Keys, the log, and the making and deploying of campaigns.
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

revoke all on all functions in schema execution from public;
grant execute on function
    execution.key_time(timestamptz),
    execution.outbox_key(uuid, uuid, text, timestamptz),
    execution.success_of(text)
    to postrider_app, postrider_worker, postrider_read;
grant execute on function
    execution.create_campaign(uuid, uuid, text, boolean, jsonb, text),
    execution.deploy_campaign(uuid, text, text, uuid, integer)
    to postrider_app;
