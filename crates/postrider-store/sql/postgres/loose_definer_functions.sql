-- Definer functions that a caller could bend, or that anybody may call.
select format('%s: %s', routine.oid::regprocedure,
              case
                  when not coalesce(routine.proconfig @> array['search_path=pg_catalog, pg_temp'], false)
                      then 'its search_path is not pinned'
                  else 'PUBLIC may call it'
              end) as "problem!"
  from pg_catalog.pg_proc as routine
  join pg_catalog.pg_namespace as schemas on schemas.oid = routine.pronamespace
 where schemas.nspowner = 'postrider_owner'::regrole
   and routine.prosecdef
   and (not coalesce(routine.proconfig @> array['search_path=pg_catalog, pg_temp'], false)
        or has_function_privilege('public', routine.oid, 'execute'))
 order by 1
