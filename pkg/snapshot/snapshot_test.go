// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/snapshot/snapshottest"
)

// plenty is a size limit for tests that are not about the size.
const plenty = 1 << 40

func noon() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

// at is the given time after noon, on a host booted at midnight.
func at(later time.Duration) snapshot.ClockState {
	return snapshot.ClockState{Wall: noon().Add(later), BootID: [16]byte{1}, Uptime: 12*time.Hour + later}
}

// A content is the records of a snapshot by kind.
type content map[snapshot.Kind][]string

func (c content) fill(w *snapshot.Writer) error {
	for _, kind := range []snapshot.Kind{snapshot.Zone, snapshot.Cache} {
		if c[kind] == nil {
			continue
		}
		w.Section(kind, 1)
		for _, record := range c[kind] {
			if err := w.Record([]byte(record)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c content) job(f snapshot.Folder) snapshot.Job {
	return snapshot.Job{Folder: f, Writer: "a", At: at(0), MaxSize: 1 << 20, Fill: c.fill}
}

func save(t *testing.T, f snapshot.Folder, c content) {
	t.Helper()
	if _, err := snapshot.Save(t.Context(), c.job(f)); err != nil {
		t.Fatal(err)
	}
}

// read returns the records of the snapshot.
func read(s *snapshot.Snapshot) content {
	c := content{}
	for _, kind := range []snapshot.Kind{snapshot.Zone, snapshot.Cache} {
		for record := range s.Records(kind) {
			c[kind] = append(c[kind], string(record))
		}
	}
	return c
}

// load returns the records of the folder's snapshot, nil if there is none.
func load(f snapshot.Folder) (content, error) {
	s, err := snapshot.Load(f, plenty)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return read(s), nil
}

func before() content {
	return content{snapshot.Zone: {"a service"}, snapshot.Cache: {"one", "", strings.Repeat("two", 60)}}
}

func after() content {
	return content{snapshot.Cache: {"three", strings.Repeat("4", 200), "5"}}
}

func TestSaveLoad(t *testing.T) {
	t.Parallel()
	long := content{snapshot.Zone: {strings.Repeat("z", 1<<14)}, snapshot.Cache: slices.Repeat([]string{"answer"}, 9000)}
	for name, want := range map[string]content{"nothing": {}, "some": before(), "more than a buffer": long} {
		for folder, f := range map[string]snapshot.Folder{"fake": snapshottest.NewDisk(), "real": snapshot.Dir(t.TempDir() + "/new")} {
			t.Run(name+"/"+folder, func(t *testing.T) {
				t.Parallel()
				n, err := snapshot.Save(t.Context(), want.job(f))
				assert.NoError(t, err)
				s, err := snapshot.Load(f, plenty)
				assert.NoError(t, err)
				assert.Same(t, "got", want, read(s))
				_, size, err := f.Open(snapshot.Name)
				if err != nil || size != n {
					t.Errorf("the file has %d bytes (%v), Save returned %d", size, err, n)
				}
			})
		}
	}
}

// TestKilled stops the process or the host at every step of a save.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, start := range []content{nil, before()} {
		disk := snapshottest.NewDisk()
		if start != nil {
			save(t, disk, start)
		}
		whole := disk.Reopen(snapshottest.LoseNothing)
		save(t, whole, after())
		steps := whole.Steps()
		if steps < 300 {
			t.Fatalf("%d steps: written bytes are not counted", steps)
		}
		outcomes := map[string]int{}
		for step := 1; step <= steps; step++ {
			dying := disk.Reopen(snapshottest.LoseNothing)
			dying.StopAt(step)
			_, err := snapshot.Save(t.Context(), after().job(dying))
			if !errors.Is(err, snapshottest.ErrStopped) {
				t.Fatalf("step %d of %d: %v, want ErrStopped", step, steps, err)
			}
			for loss := range snapshottest.NumLosses {
				next := dying.Reopen(loss)
				got, err := load(next)
				switch {
				case err != nil:
					t.Fatalf("step %d of %d, loss %d: %v", step, steps, loss, err)
				case cmp.Equal(got, start):
					outcomes["old"]++
				case cmp.Equal(got, after()):
					outcomes["new"]++
				default:
					t.Fatalf("step %d of %d, loss %d: found neither the old one nor the new one: %v", step, steps, loss, got)
				}
				// The next process, with another writer name, saves despite the leftovers and removes them.
				again := before().job(next)
				again.Writer, again.At = "b", at(time.Hour)
				if _, err := snapshot.Save(t.Context(), again); err != nil {
					t.Fatalf("step %d, loss %d: saving again: %v", step, loss, err)
				}
				if diff := cmp.Diff([]string{snapshot.Name}, next.Names()); diff != "" {
					t.Fatalf("step %d, loss %d: files (-want +got):\n%s", step, loss, diff)
				}
			}
		}
		if outcomes["old"] == 0 || outcomes["new"] == 0 {
			t.Errorf("outcomes %v, want both", outcomes)
		}
	}
}

// TestFailedSteps makes every step fail once with ENOSPC.
func TestFailedSteps(t *testing.T) {
	t.Parallel()
	disk := snapshottest.NewDisk()
	save(t, disk, before())
	whole := disk.Reopen(snapshottest.LoseNothing)
	save(t, whole, after())
	steps, failed := whole.Steps(), 0
	for step := 1; step <= steps; step++ {
		d := disk.Reopen(snapshottest.LoseNothing)
		d.FailAt(step, syscall.ENOSPC)
		_, saveErr := snapshot.Save(t.Context(), after().job(d))
		got, err := load(d)
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if saveErr == nil {
			if diff := cmp.Diff(after(), got); diff != "" {
				t.Fatalf("step %d: saved (-want +got):\n%s", step, diff)
			}
			continue
		}
		failed++
		var saveError *hint.Error
		if !errors.As(saveErr, &saveError) || !errors.Is(saveErr, syscall.ENOSPC) || !strings.HasPrefix(saveErr.Error(), "snapshot /disk/"+snapshot.Name+": ") || saveError.Hint == "" {
			t.Fatalf("step %d: error %#v", step, saveErr)
		}
		if !cmp.Equal(got, before()) && step < steps { // the last step syncs the folder
			t.Fatalf("step %d: %v, want the previous snapshot", step, got)
		}
		if diff := cmp.Diff([]string{snapshot.Name}, d.Names()); diff != "" {
			t.Fatalf("step %d: files (-want +got):\n%s", step, diff)
		}
		save(t, d, after())
	}
	if failed < steps-2 { // a failed List skips the cleanup
		t.Errorf("%d of %d steps failed the save", failed, steps)
	}
}

// TestCorrupt changes, removes and inserts every byte, and truncates the file everywhere.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	disk := snapshottest.NewDisk()
	save(t, disk, before())
	good := disk.Content(snapshot.Name)
	refused := func(data []byte, what string, i int) {
		t.Helper()
		disk.WriteFile(snapshot.Name, data)
		got, err := load(disk)
		var saveError *hint.Error
		if err == nil || !errors.As(err, &saveError) || saveError.Hint == "" {
			t.Fatalf("byte %d of %d %s: %v, error %v", i, len(good), what, got, err)
		}
		if want := "snapshot /disk/node-cache.snapshot: "; !strings.HasPrefix(err.Error(), want) && !strings.Contains(err.Error(), "section") {
			t.Fatalf("byte %d %s: error %q, want prefix %q", i, what, err, want)
		}
	}
	for i := range good {
		for _, flip := range []byte{0x01, 0x80, 0xff, 0x55, good[i]} {
			if flip == 0 {
				continue
			}
			bad := bytes.Clone(good)
			bad[i] ^= flip
			refused(bad, "changed", i)
		}
		refused(good[:i], "and all after it removed", i)
		refused(append(bytes.Clone(good[:i]), good[i+1:]...), "removed", i)
		refused(slices.Insert(bytes.Clone(good), i, 0), "after an inserted byte", i)
	}
	refused(append(bytes.Clone(good), 0), "appended", len(good))
	refused(append(bytes.Clone(good), good...), "twice", len(good))
	disk.WriteFile(snapshot.Name, good)
	if got, err := load(disk); err != nil || !cmp.Equal(got, before()) {
		t.Errorf("the good one: %v, %v", got, err)
	}
}

func TestLoadErrors(t *testing.T) {
	t.Parallel()
	disk := snapshottest.NewDisk()
	save(t, disk, before())
	good := disk.Content(snapshot.Name)
	with := func(at int, b ...byte) []byte {
		data := bytes.Clone(good)
		copy(data[at:], b)
		return data
	}
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "truncated"},
		{"short", good[:40], "truncated"},
		{"no tail", good[:100], "truncated"},
		{"foreign", []byte("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: b\n  c: d\n"), "not a node-cache snapshot"},
		{"foreign and short", []byte("x"), "not a node-cache snapshot"},
		{"newer", with(8, 2), "version 2 is from a newer node-cache: this one reads version 1"},
		{"version 0", with(8, 0), "corrupt: checksum mismatch"},
		{"head", with(20, 7), "corrupt: checksum mismatch"},
		{"zone", with(50, 7), `section "zone": corrupt: checksum mismatch`},
		{"cache", with(60, 7), `section "cache": corrupt: checksum mismatch`},
		{"large", append(bytes.Clone(good), 0), fmt.Sprintf("size %d bytes exceeds snapshot.size, %d", len(good)+1, len(good))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := snapshottest.NewDisk()
			d.WriteFile(snapshot.Name, tt.data)
			_, err := snapshot.Load(d, int64(len(good)))
			if want := "snapshot /disk/node-cache.snapshot: " + tt.want; err == nil || err.Error() != want {
				t.Errorf("error %v, want %s", err, want)
			}
		})
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	state := func(wall, up time.Duration, boot byte) snapshot.ClockState {
		return snapshot.ClockState{Wall: noon().Add(wall), Uptime: 12*time.Hour + up, BootID: [16]byte{boot}}
	}
	tests := []struct {
		name string
		now  snapshot.ClockState
		want time.Duration
		err  string
	}{
		{"the same boot", state(time.Minute, time.Minute, 1), time.Minute, ""},
		{"the same moment", state(0, 0, 1), 0, ""},
		{"the same boot, the time of day was set", state(-time.Hour, time.Minute, 1), time.Minute, ""},
		{"the same boot, and earlier", state(time.Minute, -time.Second, 1), 0, "created in the future"},
		{"another boot", state(time.Hour, -11*time.Hour, 2), time.Hour, ""},
		{"another boot, and the time of day was set back", state(-time.Second, time.Hour, 2), 0, "created in the future"},
		{"unknown boot", state(time.Hour, 2*time.Hour, 0), time.Hour, ""},
		{"as old as may be", state(0, 24*time.Hour, 1), 24 * time.Hour, ""},
		{"too old", state(0, 24*time.Hour+time.Second, 1), 0, "age 24h0m1s exceeds snapshot.maxAge, 24h0m0s"},
		{"too old by the time of day", state(25*time.Hour, 0, 2), 0, "age 25h0m0s exceeds snapshot.maxAge, 24h0m0s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			disk := snapshottest.NewDisk()
			save(t, disk, before())
			s, err := snapshot.Load(disk, plenty)
			assert.NoError(t, err)
			got, err := s.Age(tt.now, 24*time.Hour)
			text := ""
			if err != nil {
				text = strings.TrimPrefix(err.Error(), "snapshot /disk/node-cache.snapshot: ")
			}
			if got != tt.want || text != tt.err {
				t.Errorf("age %s, error %q, want %s, %q", got, text, tt.want, tt.err)
			}
		})
	}
}

// TestMaxSize limits the file to MaxSize.
func TestMaxSize(t *testing.T) {
	t.Parallel()
	for maxSize := int64(1); maxSize < 400; maxSize++ {
		disk := snapshottest.NewDisk()
		job := content{}.job(disk)
		job.MaxSize = maxSize
		full := false
		job.Fill = func(w *snapshot.Writer) error {
			w.Section(snapshot.Zone, 1)
			w.Section(snapshot.Cache, 1)
			for range 20 {
				record := bytes.Repeat([]byte{1}, 130)
				fits := snapshot.FramedSize(len(record)) <= w.Remaining()
				if err := w.Record(record); (err == nil) != fits {
					t.Errorf("MaxSize %d: record fits: %t, error %v", maxSize, fits, err)
				} else if err != nil {
					full = true
					return err
				}
			}
			return nil
		}
		_, err := snapshot.Save(t.Context(), job)
		if !full || err == nil || disk.Content(snapshot.Name) != nil {
			t.Errorf("MaxSize %d: full %t, error %v", maxSize, full, err)
		}
	}
}

// TestCanceled keeps the previous snapshot when the context ends.
func TestCanceled(t *testing.T) {
	t.Parallel()
	disk := snapshottest.NewDisk()
	save(t, disk, before())
	ctx, cancel := context.WithCancel(t.Context())
	job := after().job(disk)
	job.Fill = func(w *snapshot.Writer) error {
		w.Section(snapshot.Cache, 1)
		if err := w.Record([]byte("a")); err != nil {
			t.Error(err)
		}
		cancel()
		return w.Record([]byte("b"))
	}
	if _, err := snapshot.Save(ctx, job); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if got, err := load(disk); err != nil || !cmp.Equal(got, before()) {
		t.Errorf("%v, %v, want the previous snapshot", got, err)
	}
}

// TestTwoWriters has two agents save to one folder while a third reads.
func TestTwoWriters(t *testing.T) {
	t.Parallel()
	disk := snapshottest.NewDisk()
	disk.SetTime(time.Now())
	for name, f := range map[string]snapshot.Folder{"fake": disk, "real": snapshot.Dir(t.TempDir())} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rounds = 50
			one := content{snapshot.Cache: slices.Repeat([]string{"of the one"}, 500)}
			other := content{snapshot.Cache: slices.Repeat([]string{"of the other"}, 300)}
			save(t, f, one)
			var wg sync.WaitGroup
			for writer, c := range map[string]content{"a": one, "b": other} {
				wg.Go(func() {
					for range rounds {
						job := c.job(f)
						job.Writer, job.At.Wall = writer, time.Now()
						if _, err := snapshot.Save(t.Context(), job); err != nil {
							t.Errorf("writer %s: %v", writer, err)
						}
					}
				})
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				wg.Wait()
			}()
			for reading := true; reading; {
				select {
				case <-done:
					reading = false
				default:
				}
				if got, err := load(f); err != nil || !cmp.Equal(got, one) && !cmp.Equal(got, other) {
					t.Fatalf("mixed: %d records, %v", len(got[snapshot.Cache]), err)
				}
			}
		})
	}
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	disk := snapshottest.NewDisk()
	save(t, disk, before())
	s, err := snapshot.Load(disk, plenty)
	assert.NoError(t, err)
	if err := errors.Join(s.CheckVersion(snapshot.Cache, 1), s.CheckVersion(snapshot.Zone, 1), s.CheckVersion(9, 1)); err != nil {
		t.Error(err)
	}
	want := `snapshot /disk/node-cache.snapshot: section "cache" has version 1: this node-cache reads version 2`
	if err := s.CheckVersion(snapshot.Cache, 2); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if !s.Has(snapshot.Zone) || s.Has(9) {
		t.Error("Has reports the wrong sections")
	}
}
