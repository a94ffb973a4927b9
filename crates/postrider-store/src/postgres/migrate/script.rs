//! The script for psql.

use super::{
    catalogue::CATALOGUE,
    sources::{ROLES, Tree},
};

/// The first statement: nothing is changed where a name is taken.
const REFUSE_FOREIGN_SCHEMAS: &str = "
do $$
declare
    v_taken constant text := (select string_agg(nspname, ', ' order by nspname)
                                from pg_catalog.pg_namespace
                               where nspname in (SCHEMAS));
begin
    if v_taken is not null then
        raise exception 'this database has schemas with names that Postrider uses: %', v_taken
            using hint = 'Rename them, or install Postrider into a database of its own.';
    end if;
end
$$;
";

/// Everything that [`run`](super::run) would execute on an empty database, as one script for psql.
#[must_use]
pub fn script() -> String {
    let tree = Tree::current();
    let mut script = String::from(
        "-- Postrider's schema for an empty database, in one transaction. Run with: psql -v ON_ERROR_STOP=1 -f -\n\n\
         begin;\nset local client_min_messages = warning;\nset local check_function_bodies = off;\n",
    );
    let schemas: Vec<String> = tree.schemas().map(|schema| format!("'{schema}'")).collect();
    script.push_str(&REFUSE_FOREIGN_SCHEMAS.replace("SCHEMAS", &schemas.join(", ")));
    script.push_str(&format!("\n-- roles.sql\n{ROLES}"));
    for source in &tree.sources {
        let version =
            tree.version_of(source).map_or_else(|| "null".to_owned(), |version| version.to_string());
        script.push_str(&format!(
            "\n-- {path}\n{sql}\
             insert into postrider.sources (path, kind, version, checksum, release)\n\
             values ('{path}', '{kind}', {version}, '{checksum}', '{release}');\n",
            path = source.path,
            sql = source.for_an_empty_database(),
            kind = source.kind.name(),
            checksum = source.checksum(),
            release = tree.release,
        ));
    }
    // `doctor` compares with this.
    script.push_str(&format!("\ninsert into postrider.catalogue (line)\n{CATALOGUE};\ncommit;\n"));
    script
}
