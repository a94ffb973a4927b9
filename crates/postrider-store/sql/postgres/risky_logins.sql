-- Logins that publish and can do more, and sessions that begin with a tenant.
select format('%s is a member of postrider_publish and of %s', login.rolname,
              string_agg(other.rolname, ', ' order by other.rolname)) as "problem!"
  from pg_catalog.pg_roles as login
       join pg_catalog.pg_roles as other
         on other.rolname in ('postrider_owner', 'postrider_app', 'postrider_worker', 'postrider_read')
 where not login.rolsuper
   and login.rolcanlogin
   and pg_has_role(login.oid, 'postrider_publish', 'member')
   and pg_has_role(login.oid, other.oid, 'usage')
 group by login.rolname
 union all
select format('sessions of %s begin with %s', coalesce(nullif(setrole, 0)::regrole::text, 'every login'), setting)
  from pg_catalog.pg_db_role_setting
 cross join unnest(setconfig) as setting
 where setting ~ '^app\.(current_tenant|current_tenant_id|tenant_signature)='
   and setdatabase in (0, (select oid from pg_catalog.pg_database where datname = current_database()))
 order by 1
