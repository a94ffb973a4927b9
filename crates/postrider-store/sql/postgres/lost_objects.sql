-- Schemas and tables that the last migration recorded and that do not exist. It reads the system catalogue alone, so that every role may
-- ask.
select recorded.object as "object!"
  from postrider.catalogue
 cross join lateral substring(line from '^(schema \S+|table \S+)(?: owner .*)?$') as recorded (object)
 where recorded.object is not null
   and not exists (select
                     from pg_catalog.pg_namespace
                    where recorded.object = 'schema ' || nspname)
   and not exists (select
                     from pg_catalog.pg_class
                     join pg_catalog.pg_namespace on pg_namespace.oid = relnamespace
                    where recorded.object = format('table %s.%s', nspname, relname))
 order by recorded.object collate "C"
