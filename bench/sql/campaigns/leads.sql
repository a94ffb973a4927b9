-- Leads of a list, stored in the order of their addresses like those of an import. Ids are ordered by time.
with people as (
    insert into execution.leads (id, tenant_id, workspace_id, identity, email, attributes)
    select (lpad(to_hex(1763000000000 + n / 100), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
            || substr(md5(n::text), 4, 15))::uuid,
           $1,
           $2,
           'person' || n || '@example.com',
           'person' || n || '@example.com',
           jsonb_build_object('first_name', 'Person ' || n, 'city', 'City ' || n % 100, 'points', n % 1000)
      from generate_series(1, $4::bigint) as n
     order by 'person' || n || '@example.com'
 returning id
)
insert into execution.lead_list_members (tenant_id, list_id, lead_id)
select $1, $3, id from people
