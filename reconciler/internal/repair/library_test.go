package repair

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stockpipe/stockpipe/pkg/redisstock"
)

// TestLibraryIsNotChangedUnderAProducerThatLacksIt: whoever lives and does not carry a version would sell nothing
// more; one that is long gone keeps nobody waiting.
func TestLibraryIsNotChangedUnderAProducerThatLacksIt(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	conn, err := pgx.Connect(t.Context(), s.url)
	check(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), `insert into producer (id, libraries, seen) values
		('dead', '{7}', now() - interval '1 minute'), ('old', '{7}', now()), ('new', '{1, 7}', now())`)
	check(t, err)
	before := s.row()
	if _, err := s.ward.TakeOverTo(t.Context(), 0, redisstock.LibraryVersion, false); err == nil || !strings.Contains(err.Error(), "old (carries [7])") || strings.Contains(err.Error(), "dead") {
		t.Errorf("it was changed, or the refusal does not name who lacks it: %v", err)
	}
	if now := s.row(); now.Epoch != before.Epoch {
		t.Error("a refused change closed the shard")
	}
	_, err = conn.Exec(t.Context(), `delete from producer where id = 'old'`)
	check(t, err)
	_, err = conn.Exec(t.Context(), `update shard set library = 7`) // as if another one had been in force
	check(t, err)
	report, err := s.ward.TakeOverTo(t.Context(), 0, redisstock.LibraryVersion, false)
	if err != nil || report.Acts[0].State != Done {
		t.Fatalf("%+v, %v", report, err)
	}
	if now := s.row(); now.Library != redisstock.LibraryVersion || now.Epoch <= before.Epoch {
		t.Errorf("the ledger has version %d under epoch %d", now.Library, now.Epoch)
	}
}
