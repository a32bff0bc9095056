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

	"github.com/nodecache/node-cache/pkg/snapshot"
)

// plenty is how many octets a file may have where its size is not what a test is about.
const plenty = 1 << 40

func noon() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

// at is the moment so long after noon, of a machine that was booted at midnight.
func at(later time.Duration) snapshot.Moment {
	return snapshot.Moment{Wall: noon().Add(later), Boot: [16]byte{1}, Up: 12*time.Hour + later}
}

// A content is what a snapshot holds, by kind.
type content map[snapshot.Kind][]string

// fill writes the content.
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
	return snapshot.Job{Folder: f, Writer: "a", At: at(0), Most: 1 << 20, Fill: c.fill}
}

func save(t *testing.T, f snapshot.Folder, c content) {
	t.Helper()
	if _, err := snapshot.Save(t.Context(), c.job(f)); err != nil {
		t.Fatal(err)
	}
}

// read is what the snapshot holds.
func read(s *snapshot.Snapshot) content {
	c := content{}
	for _, kind := range []snapshot.Kind{snapshot.Zone, snapshot.Cache} {
		for record := range s.Records(kind) {
			c[kind] = append(c[kind], string(record))
		}
	}
	return c
}

// load is what the folder's snapshot holds, nil if there is none.
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

func TestSavedIsLoaded(t *testing.T) {
	t.Parallel()
	long := content{snapshot.Zone: {strings.Repeat("z", 1<<14)}, snapshot.Cache: slices.Repeat([]string{"answer"}, 9000)}
	for name, want := range map[string]content{"nothing": {}, "some": before(), "more than a buffer": long} {
		for folder, f := range map[string]snapshot.Folder{"fake": snapshot.NewDisk(), "real": snapshot.Dir(t.TempDir() + "/new")} {
			t.Run(name+"/"+folder, func(t *testing.T) {
				t.Parallel()
				n, err := snapshot.Save(t.Context(), want.job(f))
				if err != nil {
					t.Fatal(err)
				}
				s, err := snapshot.Load(f, plenty)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, read(s)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				_, size, err := f.Open(snapshot.Name)
				if err != nil || size != n {
					t.Errorf("the file has %d octets (%v), want the %d that were told", size, err, n)
				}
			})
		}
	}
}

// TestKilled ends the process, or the machine, at every step of a write.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, start := range []content{nil, before()} {
		disk := snapshot.NewDisk()
		if start != nil {
			save(t, disk, start)
		}
		whole := disk.After(snapshot.LoseNothing)
		save(t, whole, after())
		steps := whole.Steps()
		if steps < 300 {
			t.Fatalf("%d steps: the octets are not among them", steps)
		}
		outcomes := map[string]int{}
		for step := 1; step <= steps; step++ {
			dying := disk.After(snapshot.LoseNothing)
			dying.StopAt(step)
			_, err := snapshot.Save(t.Context(), after().job(dying))
			if !errors.Is(err, snapshot.ErrStopped) {
				t.Fatalf("step %d of %d: %v, want the process to have ended", step, steps, err)
			}
			for _, loss := range snapshot.Losses() {
				next := dying.After(loss)
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
				// The next process, which has another name, is not in the way of what was left behind, and cleans up.
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

// TestFailed has every step fail once, in the way of a full disk.
func TestFailed(t *testing.T) {
	t.Parallel()
	disk := snapshot.NewDisk()
	save(t, disk, before())
	whole := disk.After(snapshot.LoseNothing)
	save(t, whole, after())
	steps, failed := whole.Steps(), 0
	for step := 1; step <= steps; step++ {
		d := disk.After(snapshot.LoseNothing)
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
		var told *snapshot.Error
		if !errors.As(saveErr, &told) || !errors.Is(saveErr, syscall.ENOSPC) || told.File != "/disk/"+snapshot.Name || told.Hint == "" {
			t.Fatalf("step %d: error %#v", step, saveErr)
		}
		if !cmp.Equal(got, before()) && step < steps { // at the last one the folder is synced
			t.Fatalf("step %d: %v, and not what was there before", step, got)
		}
		if diff := cmp.Diff([]string{snapshot.Name}, d.Names()); diff != "" {
			t.Fatalf("step %d: files (-want +got):\n%s", step, diff)
		}
		save(t, d, after())
	}
	if failed < steps-2 { // what cannot be listed is not swept
		t.Errorf("%d of %d steps failed the save", failed, steps)
	}
}

// TestDamaged changes every octet, and cuts the file everywhere.
func TestDamaged(t *testing.T) {
	t.Parallel()
	disk := snapshot.NewDisk()
	save(t, disk, before())
	good := disk.Octets(snapshot.Name)
	refused := func(octets []byte, what string, i int) {
		t.Helper()
		disk.Put(snapshot.Name, octets)
		got, err := load(disk)
		var told *snapshot.Error
		if err == nil || !errors.As(err, &told) || told.Hint == "" {
			t.Fatalf("octet %d of %d %s: %v, error %v", i, len(good), what, got, err)
		}
		if want := "snapshot /disk/node-cache.snapshot: it "; !strings.HasPrefix(err.Error(), want) && !strings.Contains(err.Error(), "section") {
			t.Fatalf("octet %d %s: error %q, want %q…", i, what, err, want)
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
		refused(good[:i], "and all after it cut off", i)
		refused(append(bytes.Clone(good[:i]), good[i+1:]...), "cut out", i)
		refused(slices.Insert(bytes.Clone(good), i, 0), "after one too many", i)
	}
	refused(append(bytes.Clone(good), 0), "after the end", len(good))
	refused(append(bytes.Clone(good), good...), "twice", len(good))
	disk.Put(snapshot.Name, good)
	if got, err := load(disk); err != nil || !cmp.Equal(got, before()) {
		t.Errorf("the good one: %v, %v", got, err)
	}
}

// TestMixed puts parts of two snapshots together: what two writers on one file would make.
func TestMixed(t *testing.T) {
	t.Parallel()
	var files [2][]byte
	for i := range files {
		disk := snapshot.NewDisk()
		save(t, disk, content{snapshot.Zone: {fmt.Sprint("service", i)}, snapshot.Cache: {fmt.Sprint("answer", i)}})
		files[i] = disk.Octets(snapshot.Name)
	}
	differ := 0
	for i := range files[0] {
		mixed := append(bytes.Clone(files[0][:i]), files[1][i:]...)
		if bytes.Equal(mixed, files[0]) || bytes.Equal(mixed, files[1]) {
			continue
		}
		differ++
		disk := snapshot.NewDisk()
		disk.Put(snapshot.Name, mixed)
		if got, err := load(disk); err == nil {
			t.Errorf("the first %d octets of one, the rest of another: %v", i, got)
		}
	}
	if differ < 10 {
		t.Errorf("%d mixtures", differ)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	disk := snapshot.NewDisk()
	save(t, disk, before())
	good := disk.Octets(snapshot.Name)
	with := func(at int, b ...byte) []byte {
		octets := bytes.Clone(good)
		copy(octets[at:], b)
		return octets
	}
	tests := []struct {
		name   string
		octets []byte
		want   string
	}{
		{"empty", nil, "it is cut short"},
		{"short", good[:40], "it is cut short"},
		{"no tail", good[:100], "it is cut short"},
		{"foreign", []byte("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: b\n  c: d\n"), "it is no snapshot of node-cache"},
		{"foreign and short", []byte("x"), "it is no snapshot of node-cache"},
		{"newer", with(8, 2), "it has version 2, of a newer node-cache: this one reads version 1"},
		{"version 0", with(8, 0), "it is damaged: a checksum is wrong"},
		{"head", with(20, 7), "it is damaged: a checksum is wrong"},
		{"zone", with(50, 7), `section "zone": it is damaged: a checksum is wrong`},
		{"cache", with(60, 7), `section "cache": it is damaged: a checksum is wrong`},
		{"large", append(bytes.Clone(good), 0), fmt.Sprintf("it has %d octets, which is more than snapshot.size, %d", len(good)+1, len(good))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := snapshot.NewDisk()
			d.Put(snapshot.Name, tt.octets)
			_, err := snapshot.Load(d, int64(len(good)))
			if want := "snapshot /disk/node-cache.snapshot: " + tt.want; err == nil || err.Error() != want {
				t.Errorf("error %v, want %s", err, want)
			}
		})
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	moment := func(wall, up time.Duration, boot byte) snapshot.Moment {
		return snapshot.Moment{Wall: noon().Add(wall), Up: 12*time.Hour + up, Boot: [16]byte{boot}}
	}
	tests := []struct {
		name string
		now  snapshot.Moment
		want time.Duration
		err  string
	}{
		{"the same boot", moment(time.Minute, time.Minute, 1), time.Minute, ""},
		{"the same moment", moment(0, 0, 1), 0, ""},
		{"the same boot, the time of day was set", moment(-time.Hour, time.Minute, 1), time.Minute, ""},
		{"the same boot, and earlier", moment(time.Minute, -time.Second, 1), 0, "it is from the future"},
		{"another boot", moment(time.Hour, -11*time.Hour, 2), time.Hour, ""},
		{"another boot, and the time of day was set back", moment(-time.Second, time.Hour, 2), 0, "it is from the future"},
		{"a boot that is not known", moment(time.Hour, 2*time.Hour, 0), time.Hour, ""},
		{"as old as may be", moment(0, 24*time.Hour, 1), 24 * time.Hour, ""},
		{"too old", moment(0, 24*time.Hour+time.Second, 1), 0, "it is 24h0m1s old, which is more than snapshot.maxAge, 24h0m0s"},
		{"too old by the time of day", moment(25*time.Hour, 0, 2), 0, "it is 25h0m0s old, which is more than snapshot.maxAge, 24h0m0s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			disk := snapshot.NewDisk()
			save(t, disk, before())
			s, err := snapshot.Load(disk, plenty)
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.Age(tt.now, 24*time.Hour)
			told := ""
			if err != nil {
				told = strings.TrimPrefix(err.Error(), "snapshot /disk/node-cache.snapshot: ")
			}
			if got != tt.want || told != tt.err {
				t.Errorf("age %s, error %q, want %s, %q", got, told, tt.want, tt.err)
			}
		})
	}
}

// TestBounded never lets the file get larger than it may be.
func TestBounded(t *testing.T) {
	t.Parallel()
	for most := int64(1); most < 400; most++ {
		disk := snapshot.NewDisk()
		job := content{}.job(disk)
		job.Most = most
		full := false
		job.Fill = func(w *snapshot.Writer) error {
			w.Section(snapshot.Zone, 1)
			w.Section(snapshot.Cache, 1)
			for range 20 {
				record := bytes.Repeat([]byte{1}, 130)
				fits := snapshot.Framed(len(record)) <= w.Left()
				if err := w.Record(record); (err == nil) != fits {
					t.Errorf("most %d: record fits: %t, error %v", most, fits, err)
				} else if err != nil {
					full = true
					return err
				}
			}
			return nil
		}
		_, err := snapshot.Save(t.Context(), job)
		if !full || err == nil || disk.Octets(snapshot.Name) != nil {
			t.Errorf("most %d: filled %t, error %v", most, full, err)
		}
	}
}

// TestCancelled leaves the one before when it is to end.
func TestCancelled(t *testing.T) {
	t.Parallel()
	disk := snapshot.NewDisk()
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
		t.Errorf("%v, %v, want the one before", got, err)
	}
}

// TestTwoWriters has two agents save into one folder all the time, and a third read.
func TestTwoWriters(t *testing.T) {
	t.Parallel()
	disk := snapshot.NewDisk()
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

func TestVersion(t *testing.T) {
	t.Parallel()
	disk := snapshot.NewDisk()
	save(t, disk, before())
	s, err := snapshot.Load(disk, plenty)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Version(snapshot.Cache, 1), s.Version(snapshot.Zone, 1), s.Version(9, 1)); err != nil {
		t.Error(err)
	}
	want := `snapshot /disk/node-cache.snapshot: its section "cache" has version 1: this node-cache reads version 2`
	if err := s.Version(snapshot.Cache, 2); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if !s.Has(snapshot.Zone) || s.Has(9) {
		t.Error("sections are mistaken")
	}
}
