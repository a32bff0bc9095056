// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/snapshot/snapshottest"
)

// FuzzLoad loads arbitrary bytes, with their checksums as they are or corrected. Saving a loaded
// snapshot again gives the same content.
func FuzzLoad(f *testing.F) {
	for _, c := range []content{{}, before(), after()} {
		disk := snapshottest.NewDisk()
		if _, err := snapshot.Save(f.Context(), c.job(disk)); err != nil {
			f.Fatal(err)
		}
		good := disk.Content(snapshot.Name)
		f.Add(good, false)
		f.Add(good, true)
		f.Add(good[:len(good)-1], false)
		for _, i := range []int{16, 48, 49, len(good) - 28, len(good) - 44, len(good) - 30} {
			bad := bytes.Clone(good)
			bad[i] = 0xff
			f.Add(bad, true)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, fix bool) {
		if fix {
			data = bytes.Clone(data)
			snapshot.FixChecksums(data)
		}
		disk := snapshottest.NewDisk()
		disk.WriteFile(snapshot.Name, data)
		s, err := snapshot.Load(disk, plenty)
		if err != nil {
			if _, ok := errors.AsType[*hint.Error](err); !ok {
				t.Fatalf("error %#v", err)
			}
			return
		}
		_, _ = s.Age(at(time.Hour), time.Hour)
		_ = s.CheckVersion(snapshot.Cache, 1)
		again := snapshottest.NewDisk()
		job := read(s).job(again)
		job.MaxSize = plenty
		if _, err := snapshot.Save(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		got, err := load(again)
		assert.NoError(t, err)
		if diff := cmp.Diff(read(s), got); diff != "" {
			t.Fatalf("saved again (-want +got):\n%s", diff)
		}
	})
}
