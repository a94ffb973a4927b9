-- Roles of Postrider that have more rights than sql/roles.sql gives them.
select format('%s %s', role.rolname,
              case
                  when role.rolsuper then 'is a superuser'
                  when role.rolbypassrls then 'bypasses row-level security'
                  when role.rolcreaterole then 'may create roles'
                  when role.rolcreatedb then 'may create databases'
                  when role.rolreplication then 'may replicate'
                  when role.rolname = 'postrider_owner' and role.rolcanlogin then 'can log in'
                  else format('is a member of %s', (select string_agg(other.rolname, ', ' order by other.rolname)
                                                      from unnest(powerful.roles) as other (rolname)))
              end) as "problem!"
  from pg_catalog.pg_roles as role
 cross join lateral (
           select array_agg(other.rolname)
             from pg_catalog.pg_roles as other
            where other.oid <> role.oid
              and (other.rolname ~ '^pg_'
                   or other.rolname in ('postrider_owner', 'postrider_app', 'postrider_worker', 'postrider_read', 'postrider_publish'))
              and pg_has_role(role.oid, other.oid, 'member')) as powerful (roles)
 where role.rolname in ('postrider_owner', 'postrider_app', 'postrider_worker', 'postrider_read', 'postrider_publish')
   and (role.rolsuper
        or role.rolbypassrls
        or role.rolcreaterole
        or role.rolcreatedb
        or role.rolreplication
        or role.rolname = 'postrider_owner' and role.rolcanlogin
        or powerful.roles is not null)
 order by 1
