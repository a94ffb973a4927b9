-- Removal of a tenant: all of its rows, table by table in small steps, and at last the tenant itself. Only members of the owner role
-- may call these functions.

create or replace function tenancy.begin_removal(p_tenant_id uuid)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Waits for transactions that add send jobs; later ones see the mark.
    perform from tenancy.tenants as tenant where tenant.id = p_tenant_id for update;
    update tenancy.tenants as tenant
       set removing_since = v_now
     where tenant.id = p_tenant_id
       and tenant.removing_since is null;
    -- Without keys and their sessions no request can act for the tenant.
    delete from tenancy.login_codes as code where code.tenant_id = p_tenant_id;
    delete from tenancy.sessions as session where session.tenant_id = p_tenant_id;
    delete from tenancy.api_keys as key where key.tenant_id = p_tenant_id;
    update jobs.schedules as schedule
       set enabled = false
     where schedule.tenant_id = p_tenant_id
       and schedule.enabled;
end
$$;
revoke all on function tenancy.begin_removal(uuid) from public;
comment on function tenancy.begin_removal(uuid) is
    'Marks a tenant as being removed: its rows may be deleted, it gets no send jobs, and its accounts take no webhooks. Deletes '
    'its API keys and sessions and disables its schedules. Repeating the call changes nothing.';

create or replace function tenancy.tenant_tables()
returns table (name text, referenced_by text[])
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select class.oid::regclass::text,
           array(select distinct fk.conrelid::regclass::text
                   from pg_constraint as fk
                  where fk.contype = 'f'
                    and fk.confrelid = class.oid
                    and fk.conrelid <> class.oid)
      from pg_class as class
     where class.relkind in ('r', 'p')
       and class.relnamespace in (select schema.oid from pg_namespace as schema where schema.nspowner = 'postrider_owner'::regrole)
       and exists (select from pg_attribute as tenant
                    where tenant.attrelid = class.oid and tenant.attname = 'tenant_id' and not tenant.attisdropped)
     order by 1
$$;
revoke all on function tenancy.tenant_tables() from public;
comment on function tenancy.tenant_tables() is
    'Returns the tables that have a tenant_id, as the catalog knows them, with the tables whose foreign keys refer to them.';

create or replace function tenancy.remove_rows(p_tenant_id uuid, p_table text, p_limit integer)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_removed bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if not exists (select from tenancy.tenant_tables() as known where known.name = p_table) then
        raise exception '% is not a table with a tenant_id', p_table using errcode = 'invalid_parameter_value';
    end if;
    -- The lock keeps the tenant's row until the rows are removed.
    perform from tenancy.tenants as tenant where tenant.id = p_tenant_id and tenant.removing_since is not null for key share;
    if not found then
        raise exception 'tenant % is not being removed', p_tenant_id using errcode = 'invalid_parameter_value';
    end if;
    execute format('delete from %s where tenant_id = $1 and ctid = any (array(select ctid from %s where tenant_id = $1 limit $2))',
                   p_table::regclass, p_table::regclass)
      using p_tenant_id, p_limit;
    get diagnostics v_removed = row_count;
    return v_removed;
end
$$;
revoke all on function tenancy.remove_rows(uuid, text, integer) from public;
comment on function tenancy.remove_rows(uuid, text, integer) is
    'Deletes up to p_limit rows of a tenant that is being removed from one table. Returns the number of deleted rows.';

create or replace function tenancy.finish_removal(p_tenant_id uuid, p_tables text[], p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_table text;
    v_more bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- A row that another session adds refers to the tenant, directly or through other rows, and waits for this lock.
    perform from tenancy.tenants as tenant where tenant.id = p_tenant_id for update;
    foreach v_table in array p_tables loop
        loop
            v_more := tenancy.remove_rows(p_tenant_id, v_table, 1000);
            exit when v_more = 0;
        end loop;
    end loop;
    delete from tenancy.tenants as tenant where tenant.id = p_tenant_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (tenancy.system_tenant_id(), p_actor, 'tenant.removed', 'tenant:' || p_tenant_id);
end
$$;
revoke all on function tenancy.finish_removal(uuid, text[], text) from public;
comment on function tenancy.finish_removal(uuid, text[], text) is
    'Deletes the last rows of a tenant that is being removed, in the order of p_tables, and the tenant itself, in one '
    'transaction. The audit log of the system tenant records the id.';
