// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/configsource"
)

// TestSourceProblems puts what can be wrong with the source into the order of a page.
func TestSourceProblems(t *testing.T) {
	t.Parallel()
	unread := &Unread{Where: "config", What: "reading ConfigMap a/b: unreachable: no route", Hint: "see"}
	inUse := &LastGood{Folder: "/kept", InUse: true}
	tests := []struct {
		name string
		s    Config
		want []string
	}{
		{"nothing", Config{LastOK: true, Source: configsource.KindFile, File: "/f", LastGood: &LastGood{}}, nil},
		{"a bad file", Config{LastError: "key: bad\nother: bad", File: "/f"}, []string{"the last file was refused: key: bad"}},
		{"a bad ConfigMap", Config{LastError: "key: bad", Object: "a/b"}, []string{"the last configuration was refused: key: bad"}},
		{"the API away", Config{LastOK: true, Object: "a/b", Unread: unread}, []string{unread.What}},
		{
			"the API away, and a bad ConfigMap before",
			Config{LastError: "key: bad", Object: "a/b", Unread: unread},
			[]string{unread.What, "the last configuration was refused: key: bad"},
		},
		{
			"the API away at the start",
			Config{LastError: unread.What, Object: "a/b", Unread: unread, LastGood: inUse},
			[]string{unread.What, "the last good configuration of a/b is in use, from /kept"},
		},
		{
			"a bad file at the start",
			Config{LastError: "key: bad", File: "/f", LastGood: inUse},
			[]string{"the last file was refused: key: bad", "the last good configuration of /f is in use, from /kept"},
		},
		{
			"a full disk",
			Config{LastOK: true, File: "/f", LastGood: &LastGood{LastError: "no space"}},
			[]string{"the last good configuration is not saved: no space"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, p := range Problems(&Status{Config: tt.s}, nil, nil, nil, nil) {
				got = append(got, p.What)
				if p.Where != "config" || p.Hint == "" {
					t.Errorf("%+v: want a hint, and config", p)
				}
			}
			assert.Same(t, "problems", tt.want, got)
		})
	}
}
