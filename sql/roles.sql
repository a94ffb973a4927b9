-- The five roles, and the schema in which the migrator records the files that it applied. Runs first at every
-- migration, as the login that migrates. That login needs CREATEROLE and the ownership of the database, and no more.
-- Everything after `set local role` runs as postrider_owner. Applied again, this file changes nothing.

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
                -- Roles belong to the cluster: a migration of another database may have created this one meanwhile.
                when duplicate_object or unique_violation then null;
            end;
        end if;
    end loop;

    -- From Postgres 16 on, the creator of a role becomes its member at once, but may act as it only after a grant.
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
comment on schema postrider is
    'Records of the migrator: applied files and the catalog that they lead to.';
grant usage on schema postrider to postrider_app, postrider_worker, postrider_read;

create table if not exists postrider.sources (
    path       text        not null,
    kind       text        not null,
    version    integer,
    checksum   text        not null,
    release    text        not null,
    applied_at timestamptz not null default now(),
    constraint sources_kind_check check (kind in ('baseline', 'upgrade', 'replaceable')),
    constraint sources_replaceable_has_no_version check ((kind = 'replaceable') = (version is null)),
    primary key (path)
);
comment on table postrider.sources is
    'One row per applied file of sql/: baseline files with the version of the baseline, upgrade steps with their number, and '
    'replaceable files. The checksum shows whether the text changed since. The migrator locks this table, so that one '
    'migration runs at a time.';

create table if not exists postrider.catalogue (
    line text not null
);
comment on table postrider.catalogue is
    'The database catalog as the last migration left it, one line per object. `postrider doctor` compares it with the '
    'current catalog.';

grant select on postrider.sources, postrider.catalogue to postrider_app, postrider_worker, postrider_read;
