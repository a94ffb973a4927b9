-- Provider accounts of a tenant: creation, new secrets, limits, removal, and the lookup for provider callbacks.

create or replace function tenancy.create_provider_account(
    p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_provider text, p_settings jsonb,
    p_sealed_secret bytea, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, settings, sealed_secret)
    values (p_id, p_tenant_id, p_workspace_id, p_name, p_provider, p_settings, p_sealed_secret);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'account.created', 'account:' || p_id, p_provider);
end
$$;
revoke all on function tenancy.create_provider_account(uuid, uuid, uuid, text, text, jsonb, bytea, text) from public;
grant execute on function tenancy.create_provider_account(uuid, uuid, uuid, text, text, jsonb, bytea, text) to postrider_app;
comment on function tenancy.create_provider_account(uuid, uuid, uuid, text, text, jsonb, bytea, text) is
    'Creates a provider account of the tenant, with a sealed secret.';

create or replace function tenancy.rotate_provider_account(p_tenant_id uuid, p_id uuid, p_sealed_secret bytea, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update tenancy.provider_accounts
       set sealed_secret = p_sealed_secret,
           updated_at = v_now
     where tenant_id = p_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'account.rotated', 'account:' || p_id);
    perform execution.try_new_secret(p_tenant_id, p_id);
    return true;
end
$$;
revoke all on function tenancy.rotate_provider_account(uuid, uuid, bytea, text) from public;
grant execute on function tenancy.rotate_provider_account(uuid, uuid, bytea, text) to postrider_app;
comment on function tenancy.rotate_provider_account(uuid, uuid, bytea, text) is
    'Replaces the sealed secret of an account of the tenant, and half opens its circuit. Returns false if there is no such account.';

create or replace function tenancy.remove_provider_account(p_tenant_id uuid, p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.provider_accounts
     where tenant_id = p_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'account.removed', 'account:' || p_id);
    return true;
end
$$;
revoke all on function tenancy.remove_provider_account(uuid, uuid, text) from public;
grant execute on function tenancy.remove_provider_account(uuid, uuid, text) to postrider_app;
comment on function tenancy.remove_provider_account(uuid, uuid, text) is
    'Removes an account of the tenant. Returns false if there is no such account.';

create or replace function tenancy.limit_provider_account(p_tenant_id uuid, p_id uuid, p_limits jsonb, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_zone constant text := coalesce(p_limits #>> '{hours,time_zone}', p_limits ->> 'time_zone');
begin
    perform tenancy.require_tenant(p_tenant_id);
    if not exists (select from pg_timezone_names where name = v_zone) and v_zone is not null then
        raise exception 'the database knows no time zone `%`', v_zone
            using errcode = 'invalid_parameter_value', hint = 'Write it like `Europe/Berlin`.';
    end if;
    update tenancy.provider_accounts
       set limits = p_limits
     where tenant_id = p_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'account.limited', 'account:' || p_id, p_limits::text);
    update execution.job_queue as job
       set run_after = v_now,
           waits_for = null
     where job.tenant_id = p_tenant_id
       and job.status = 'queued'
       and job.waits_for in ('rate', 'daily', 'hours')
       and job.run_after > v_now
       and job.run_id in (select run.id
                            from execution.campaign_runs as run
                           where run.tenant_id = p_tenant_id
                             and p_id in (run.provider_account_id, run.failover_account_id));
    return true;
end
$$;
revoke all on function tenancy.limit_provider_account(uuid, uuid, jsonb, text) from public;
grant execute on function tenancy.limit_provider_account(uuid, uuid, jsonb, text) to postrider_app;
comment on function tenancy.limit_provider_account(uuid, uuid, jsonb, text) is
    'Sets the limits of an account of the current tenant and makes send jobs that waited for the old limits due at '
    'once. Returns false if there is no such account.';

create or replace function tenancy.account_of_callback(p_tenant_id uuid, p_account_id uuid)
returns table (provider text, settings jsonb, sealed_secret bytea)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select account.provider, account.settings, account.sealed_secret
          from tenancy.provider_accounts as account
         where account.tenant_id = p_tenant_id
           and account.id = p_account_id
           and exists (select from tenancy.tenants as tenant where tenant.id = p_tenant_id and tenant.removing_since is null);
end
$$;
revoke all on function tenancy.account_of_callback(uuid, uuid) from public;
grant execute on function tenancy.account_of_callback(uuid, uuid) to postrider_app;
comment on function tenancy.account_of_callback(uuid, uuid) is
    'Returns provider, settings and sealed secret of an account, for webhooks and callbacks of its provider. Their URL '
    'names the tenant and the account. Returns nothing while the tenant is being removed.';

create or replace function tenancy.note_new_secret()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    new.secret_set_at := now();
    return new;
end
$$;
revoke all on function tenancy.note_new_secret() from public;
comment on function tenancy.note_new_secret() is
    'Trigger function: sets `secret_set_at` to the current time.';
create or replace trigger provider_accounts_secrets_have_a_time
    before update of sealed_secret on tenancy.provider_accounts
    for each row
    when (old.sealed_secret is distinct from new.sealed_secret)
    execute function tenancy.note_new_secret();
