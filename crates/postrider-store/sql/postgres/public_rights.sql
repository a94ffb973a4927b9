-- Rights of PUBLIC in this database that let every login use up its disk or shadow names, and how to take them away.
select 'create temporary tables' as "may!", format('revoke temporary on database %I from public', current_database()) as "advice!"
 where has_database_privilege('public', current_database(), 'temporary')
 union all
select 'create schemas', format('revoke create on database %I from public', current_database())
 where has_database_privilege('public', current_database(), 'create')
 union all
select 'create objects in schema public', 'revoke create on schema public from public'
  from pg_catalog.pg_namespace
 where nspname = 'public'
   and has_schema_privilege('public', oid, 'create')
 union all
select 'create large objects',
       'revoke execute on function ' || string_agg(routine::text, ', ' order by routine::text) || ' from public'
  from unnest(array['lo_creat(integer)', 'lo_create(oid)', 'lo_from_bytea(oid, bytea)']::regprocedure[]) as routine
 where has_function_privilege('public', routine, 'execute')
having count(*) > 0
