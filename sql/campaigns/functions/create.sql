-- Creation of assets and campaigns.

create or replace function execution.create_asset(
    p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_channel text, p_content jsonb, p_actor text)
returns table (id uuid, version integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_newest record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Create one asset at a time per workspace, so that versions have no gaps. The lock is on a row that only this
    -- tenant can reach: any client that guesses the number of an advisory lock could hold it.
    perform
       from tenancy.workspaces as workspace
      where workspace.tenant_id = p_tenant_id
        and workspace.id = p_workspace_id
        for no key update;
    select asset.id, asset.version, asset.channel, asset.content
      into v_newest
      from execution.assets as asset
     where asset.tenant_id = p_tenant_id
       and asset.workspace_id = p_workspace_id
       and asset.name = p_name
     order by asset.version desc
     limit 1;
    if v_newest.channel = p_channel and v_newest.content = p_content then
        return query select v_newest.id, v_newest.version;
        return;
    end if;
    insert into execution.assets (id, tenant_id, workspace_id, name, version, channel, content)
    values (p_id, p_tenant_id, p_workspace_id, p_name, coalesce(v_newest.version, 0) + 1, p_channel, p_content);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'asset.created', 'asset:' || p_id, p_name);
    return query select p_id, coalesce(v_newest.version, 0) + 1;
end
$$;
comment on function execution.create_asset(uuid, uuid, uuid, text, text, jsonb, text) is
    'Creates the next version of an asset of the tenant. Returns the newest version instead if its '
    'channel and content are the same.';
revoke all on function execution.create_asset(uuid, uuid, uuid, text, text, jsonb, text) from public;
grant execute on function execution.create_asset(uuid, uuid, uuid, text, text, jsonb, text) to postrider_app;

-- A phase is a JSON object with id, phase, kind, channel, asset_id, list, provider_account, failover_account,
-- failure_tolerance, scheduled_for and quiet_time_seconds. Lists and accounts are given by name.
create or replace function execution.create_campaign(
    p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_auto_advance boolean, p_phases jsonb, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_phase jsonb;
    v_position integer := 0;
    v_kind text;
    v_channel text;
    v_asset_id uuid;
    v_asset_channel text;
    v_list_id uuid;
    v_account_id uuid;
    v_failover_id uuid;
    v_retired_at timestamptz;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if jsonb_typeof(p_phases) is distinct from 'array' or jsonb_array_length(p_phases) not between 1 and 100 then
        raise exception 'a campaign has between 1 and 100 phases' using errcode = 'invalid_parameter_value';
    end if;
    insert into execution.campaigns (id, tenant_id, workspace_id, name, auto_advance)
    values (p_id, p_tenant_id, p_workspace_id, p_name, p_auto_advance);
    perform execution.audit(p_tenant_id, p_id, null, null, null, null, p_actor, 'campaign.created', p_name);

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
             where asset.tenant_id = p_tenant_id
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
                 where list.tenant_id = p_tenant_id
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
            select account.id, account.retired_at
              into v_account_id, v_retired_at
              from tenancy.provider_accounts as account
             where account.tenant_id = p_tenant_id
               and account.workspace_id = p_workspace_id
               and account.name = v_phase ->> 'provider_account';
            if not found then
                raise exception 'phase `%`: there is no provider account `%`', v_phase ->> 'phase',
                                coalesce(v_phase ->> 'provider_account', '(none)')
                    using errcode = 'no_data_found', hint = 'Add one with `postrider accounts add`.';
            end if;
            if v_retired_at is not null then
                raise exception 'phase `%`: the provider account `%` is retired', v_phase ->> 'phase', v_phase ->> 'provider_account'
                    using errcode = 'invalid_parameter_value', hint = 'Name another account.';
            end if;
            if v_phase ->> 'failover_account' is not null then
                select account.id, account.retired_at
                  into v_failover_id, v_retired_at
                  from tenancy.provider_accounts as account
                 where account.tenant_id = p_tenant_id
                   and account.workspace_id = p_workspace_id
                   and account.name = v_phase ->> 'failover_account';
                if not found then
                    raise exception 'phase `%`: there is no provider account `%` to fail over to', v_phase ->> 'phase',
                                    v_phase ->> 'failover_account'
                        using errcode = 'no_data_found', hint = 'Add one with `postrider accounts add`.';
                end if;
                if v_retired_at is not null then
                    raise exception 'phase `%`: the provider account `%` is retired', v_phase ->> 'phase', v_phase ->> 'failover_account'
                        using errcode = 'invalid_parameter_value', hint = 'Name another account.';
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
        values ((v_phase ->> 'id')::uuid, p_tenant_id, p_workspace_id, p_id, v_position, v_phase ->> 'phase', v_kind,
                v_channel, v_asset_id, v_list_id, v_account_id, v_failover_id,
                coalesce((v_phase ->> 'failure_tolerance')::numeric, 0.05),
                (v_phase ->> 'scheduled_for')::timestamptz,
                coalesce(make_interval(secs => (v_phase ->> 'quiet_time_seconds')::double precision),
                         interval '11 minutes'));
    end loop;
end
$$;
comment on function execution.create_campaign(uuid, uuid, uuid, text, boolean, jsonb, text) is
    'Creates a campaign of the tenant with its phases, all or nothing. An error names the phase that '
    'it is about.';
revoke all on function execution.create_campaign(uuid, uuid, uuid, text, boolean, jsonb, text) from public;
grant execute on function execution.create_campaign(uuid, uuid, uuid, text, boolean, jsonb, text) to postrider_app;
