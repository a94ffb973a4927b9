-- Signatures of all functions in these schemas.
select format('%s.%s', namespace.nspname, routine.proname) as "name!",
       pg_get_function_arguments(routine.oid) as "arguments!",
       coalesce(pg_get_function_result(routine.oid), 'nothing') as "result!"
  from pg_catalog.pg_proc as routine
  join pg_catalog.pg_namespace as namespace on namespace.oid = routine.pronamespace
 where namespace.nspname = any ($1)
 order by 1, 2
