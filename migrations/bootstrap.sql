-- Creates the five roles and the tables that record the applied steps.
-- Runs before every migration, as the login that migrates. It needs CREATEROLE and to own the database, and no
-- more. Safe beside running workers: it changes nothing that exists.

do $$
declare
    wanted record;
begin
    for wanted in
        select *
          from (values ('postrider_owner', 'nologin'),
                       ('postrider_app', 'login'),
                       ('postrider_worker', 'login'),
                       ('postrider_read', 'login'),
                       ('postrider_publish', 'nologin')) as roles (name, login)
    loop
        if not exists (select from pg_catalog.pg_roles where rolname = wanted.name) then
            begin
                execute format('create role %I %s', wanted.name, wanted.login);
            exception
                -- Roles belong to the cluster: another database's migration was faster.
                when duplicate_object or unique_violation then null;
            end;
        end if;
    end loop;

    -- From 16 on, whoever creates a role is its member at once, but may not act as it before a grant says so.
    if not pg_has_role(current_user, 'postrider_owner',
                       case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end)
    then
        begin
            execute format('grant postrider_owner to %I', current_user);
        exception
            -- The same login migrates another database at this moment.
            when unique_violation then null;
        end;
    end if;
    if not has_database_privilege('postrider_owner', current_database(), 'create') then
        execute format('grant create on database %I to postrider_owner', current_database());
    end if;
end
$$;

set local role postrider_owner;

create schema if not exists postrider;
grant usage on schema postrider to postrider_app, postrider_worker, postrider_read;

-- One row per applied step. The checksum tells a changed step from the one that ran.
create table if not exists postrider.migrations (
    version    integer     primary key,
    name       text        not null,
    checksum   text        not null,
    applied_at timestamptz not null default now()
);

-- The catalogue as the last migration left it, one line per object, so that `doctor` can say what was changed since.
create table if not exists postrider.catalogue (
    line text not null
);

grant select on postrider.migrations, postrider.catalogue to postrider_app, postrider_worker, postrider_read;
