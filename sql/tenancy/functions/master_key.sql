-- The master key under which the secrets of this installation are sealed: its check value, its rotation, and the
-- triggers that refuse secrets sealed under another key.

create or replace function tenancy.key_id_of(p_sealed bytea)
returns bytea
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select case when octet_length(p_sealed) >= 29 and get_byte(p_sealed, 0) = 1 then substring(p_sealed from 2 for 4) end
$$;
revoke all on function tenancy.key_id_of(bytea) from public;
comment on function tenancy.key_id_of(bytea) is
    'Returns the id of the key that sealed a value, from the header of the value (version, four bytes of key id, '
    'nonce). Returns null for anything that is not a sealed value.';

create or replace function tenancy.master_key_check()
returns bytea
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select sealed_check from tenancy.master_key
$$;
revoke all on function tenancy.master_key_check() from public;
grant execute on function tenancy.master_key_check() to postrider_app, postrider_worker;
comment on function tenancy.master_key_check() is
    'Returns the check value of the registered master key, or null before a key is registered.';

create or replace function tenancy.sealing_key_check()
returns bytea
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select sealed_check from tenancy.master_key for key share
$$;
revoke all on function tenancy.sealing_key_check() from public;
grant execute on function tenancy.sealing_key_check() to postrider_app;
comment on function tenancy.sealing_key_check() is
    'Returns the check value of the master key and locks it against rotation until the end of the transaction, for a '
    'transaction that is about to seal a secret.';

create or replace function tenancy.sealed_values()
returns table (kind text, tenant_id uuid, id uuid, sealed_secret bytea)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select 'account', account.tenant_id, account.id, account.sealed_secret
      from tenancy.provider_accounts as account
    union all
    -- Versions that share a secret have the same sealed value.
    select distinct 'version', earlier.tenant_id, earlier.account_id, earlier.sealed_secret
      from tenancy.provider_account_versions as earlier
           join tenancy.provider_accounts as account
             on account.tenant_id = earlier.tenant_id and account.id = earlier.account_id
     where earlier.sealed_secret <> account.sealed_secret
    union all
    select 'executor', executor.tenant_id, executor.id, executor.sealed_secret
      from channels.channel_executors as executor
     where executor.sealed_secret is not null
    union all
    select 'function', function.tenant_id, function.id, function.sealed_secret
      from jobs.functions as function
     where function.sealed_secret is not null
$$;
revoke all on function tenancy.sealed_values() from public;
comment on function tenancy.sealed_values() is
    'Returns every sealed value of the installation. A test compares this list with the columns called '
    '`sealed_secret`.';

create or replace function tenancy.sealed_keys()
returns table (key_id bytea, number bigint, tenant_id uuid, id uuid, sealed_secret bytea)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select distinct on (tenancy.key_id_of(value.sealed_secret))
           tenancy.key_id_of(value.sealed_secret),
           count(*) over (partition by tenancy.key_id_of(value.sealed_secret)),
           value.tenant_id, value.id, value.sealed_secret
      from tenancy.sealed_values() as value
     where tenancy.key_id_of(value.sealed_secret) is not null
     order by tenancy.key_id_of(value.sealed_secret), value.id
$$;
revoke all on function tenancy.sealed_keys() from public;
grant execute on function tenancy.sealed_keys() to postrider_worker;
comment on function tenancy.sealed_keys() is
    'Counts the values sealed under each key, with one value of each.';

create or replace function tenancy.register_master_key(p_sealed_check bytea)
returns bytea
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sealed_check bytea;
begin
    if tenancy.key_id_of(p_sealed_check) is null then
        raise exception 'p_sealed_check must be a sealed value' using errcode = 'invalid_parameter_value';
    end if;
    insert into tenancy.master_key (sealed_check) values (p_sealed_check) on conflict do nothing;
    -- This statement has a new snapshot, which shows a key that another process registered meanwhile.
    select sealed_check into strict v_sealed_check from tenancy.master_key;
    return v_sealed_check;
end
$$;
revoke all on function tenancy.register_master_key(bytea) from public;
grant execute on function tenancy.register_master_key(bytea) to postrider_worker;
comment on function tenancy.register_master_key(bytea) is
    'Registers a master key if none is registered, and returns the check value of the registered key.';

create or replace function tenancy.replace_master_key(p_sealed_check bytea, p_action text, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    if tenancy.key_id_of(p_sealed_check) is null then
        raise exception 'p_sealed_check must be a sealed value' using errcode = 'invalid_parameter_value';
    end if;
    perform from tenancy.master_key for update;
    insert into tenancy.master_key (sealed_check)
    values (p_sealed_check)
    on conflict (is_the_only_row) do update set sealed_check = excluded.sealed_check, changed_at = v_now;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (tenancy.system_tenant_id(), p_actor, p_action, 'master_key:' || encode(tenancy.key_id_of(p_sealed_check), 'hex'));
end
$$;
revoke all on function tenancy.replace_master_key(bytea, text, text) from public;
comment on function tenancy.replace_master_key(bytea, text, text) is
    'Replaces the registered master key. From this call to the end of the transaction no other transaction can seal a '
    'secret. Only members of the owner role may call it.';

create or replace function tenancy.reseal(
    p_kinds text[], p_tenant_ids uuid[], p_ids uuid[], p_old bytea[], p_new bytea[])
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number bigint := 0::bigint;
    v_one    record;
    v_set_at timestamptz;
begin
    for v_one in
        select value.kind, value.tenant_id, value.id, value.old, value.new
          from unnest(p_kinds, p_tenant_ids, p_ids, p_old, p_new) as value (kind, tenant_id, id, old, new)
    loop
        case v_one.kind
            when 'account' then
                select secret_set_at into v_set_at
                  from tenancy.provider_accounts
                 where tenant_id = v_one.tenant_id and id = v_one.id and sealed_secret = v_one.old
                   for no key update;
                continue when not found;
                update tenancy.provider_accounts set sealed_secret = v_one.new where tenant_id = v_one.tenant_id and id = v_one.id;
                -- The trigger provider_accounts_secrets_have_a_time has set this to now.
                update tenancy.provider_accounts set secret_set_at = v_set_at where tenant_id = v_one.tenant_id and id = v_one.id;
                update tenancy.provider_account_versions
                   set sealed_secret = v_one.new
                 where tenant_id = v_one.tenant_id and account_id = v_one.id and sealed_secret = v_one.old;
            when 'version' then
                update tenancy.provider_account_versions
                   set sealed_secret = v_one.new
                 where tenant_id = v_one.tenant_id and account_id = v_one.id and sealed_secret = v_one.old;
                continue when not found;
            when 'executor' then
                update channels.channel_executors
                   set sealed_secret = v_one.new
                 where tenant_id = v_one.tenant_id and id = v_one.id and sealed_secret = v_one.old;
                continue when not found;
            when 'function' then
                update jobs.functions
                   set sealed_secret = v_one.new
                 where tenant_id = v_one.tenant_id and id = v_one.id and sealed_secret = v_one.old;
                continue when not found;
        end case;
        v_number := v_number + 1;
    end loop;
    return v_number;
end
$$;
revoke all on function tenancy.reseal(text[], uuid[], uuid[], bytea[], bytea[]) from public;
comment on function tenancy.reseal(text[], uuid[], uuid[], bytea[], bytea[]) is
    'Replaces sealed values by newly sealed ones, where the old ones are still present, and returns their number. The '
    'plain secrets are the same, so `secret_set_at` stays. Only members of the owner role may call it.';

create or replace function tenancy.refuse_other_master_key()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if tenancy.key_id_of(new.sealed_secret) <> tenancy.key_id_of(tenancy.sealing_key_check()) then
        raise exception 'the secret is sealed under another master key than the secrets of this installation'
            using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name,
                  hint = 'Start this process with the master key that is in use now.';
    end if;
    return new;
end
$$;
revoke all on function tenancy.refuse_other_master_key() from public;
comment on function tenancy.refuse_other_master_key() is
    'Trigger function: refuses a secret that is sealed under another key than the registered one, so that a process '
    'still running with the old key cannot store a secret that other processes cannot open.';
-- An update that keeps the secret does not fire the trigger: it must not lock the registered key, because a rotation may
-- hold that lock and wait for the row. The triggers of other tables with secrets are in the guards of their areas.
create or replace trigger provider_accounts_are_sealed_under_one_key
    before insert on tenancy.provider_accounts
    for each row
    when (new.sealed_secret is not null)
    execute function tenancy.refuse_other_master_key();
create or replace trigger provider_accounts_stay_sealed_under_one_key
    before update of sealed_secret on tenancy.provider_accounts
    for each row
    when (new.sealed_secret is distinct from old.sealed_secret)
    execute function tenancy.refuse_other_master_key();

create or replace trigger provider_account_versions_stay_sealed_under_one_key
    before update of sealed_secret on tenancy.provider_account_versions
    for each row
    when (new.sealed_secret is distinct from old.sealed_secret)
    execute function tenancy.refuse_other_master_key();
