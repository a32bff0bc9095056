// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/config"
)

// FuzzParse holds Parse to its contract: a plan that survives Marshal, or an [config.Error] that says something.
func FuzzParse(f *testing.F) {
	all, err := config.Marshal(config.Default(config.Agent)) // not the reference: comments only make inputs long
	if err != nil {
		f.Fatal(err)
	}
	f.Add(all)
	f.Add([]byte("forward: [{zone: ., to: ['[::1]:54', 'tcp://192.0.2.1', /a/../b]}]\ncache: {prefetch: {remaining: 12.25%}}"))
	files, err := filepath.Glob("testdata/bad-*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse(data, config.Agent)
		if err == nil {
			roundTrip(t, c)
			return
		}
		problems, ok := errors.AsType[*config.Error](err)
		if !ok || len(problems.Problems) == 0 {
			t.Fatalf("error %#v, want a *config.Error with problems", err)
		}
		for _, p := range problems.Problems {
			if p.What == "" {
				t.Errorf("problem %+v says nothing", p)
			}
		}
		if diff := cmp.Diff(config.Config{}, c, plain()); diff != "" {
			t.Errorf("plan beside an error (-want +got):\n%s", diff)
		}
	})
}
