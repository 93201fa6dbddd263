package reconcilerapp

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// tables is every row of every table, in order.
func (s *shop) tables() string {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.url)
	check(s.t, err)
	defer conn.Close(s.t.Context())
	rows, err := conn.Query(s.t.Context(), `select tablename::text from pg_tables where schemaname = 'public' order by 1`)
	check(s.t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	check(s.t, err)
	var b strings.Builder
	for _, name := range names {
		rows, err := conn.Query(s.t.Context(), `select x::text from `+pgx.Identifier{name}.Sanitize()+` x order by 1`)
		check(s.t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		check(s.t, err)
		fmt.Fprintf(&b, "%s\n%s\n", name, strings.Join(lines, "\n"))
	}
	return b.String()
}

// exec changes the database by hand.
func (s *shop) exec(sql string, args ...any) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.url)
	check(s.t, err)
	defer conn.Close(s.t.Context())
	_, err = conn.Exec(s.t.Context(), sql, args...)
	check(s.t, err)
}
