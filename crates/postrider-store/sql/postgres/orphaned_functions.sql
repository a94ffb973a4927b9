-- Functions of these schemas ($1) whose signature is not among those that the files define ($2).
select routine.oid::regprocedure::text as "signature!"
  from pg_catalog.pg_proc as routine
 where routine.pronamespace in (select oid from pg_catalog.pg_namespace where nspname = any ($1))
   and routine.oid not in (select to_regprocedure(defined)::oid
                             from unnest($2::text[]) as defined
                            where to_regprocedure(defined) is not null)
 order by routine.oid::regprocedure::text collate "C"
