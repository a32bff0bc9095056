// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/elliptic"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// TestChartPush pushes the chart of a release to registries with and without a list of referrers. Its statements verify, and Helm pulls
// the file that the release has.
func TestChartPush(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	key, public := writeKey(t, elliptic.P256(), "")
	o := &options{root: repository, name: imageName, version: "v1.2.3", revision: "0123abcd", created: time.Unix(1700000000, 0).UTC()}
	var err error
	if o.signer, err = readKey(key, ""); err != nil {
		t.Fatal(err)
	}
	files := tree{}
	reference, err := o.addChart(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.write(out); err != nil {
		t.Fatal(err)
	}
	named, digest, _ := strings.Cut(reference, "@")
	if want := "ghcr.io/nodecache/charts/node-cache:1.2.3"; named != want {
		t.Errorf("the chart is named %s, want %s", named, want)
	}
	const file = "node-cache-1.2.3.tgz"
	checkChart(t, files[file].data)
	if p := string(files["node-cache-chart-v1.2.3.intoto.json"].data); !strings.Contains(p, `"name":"ghcr.io/nodecache/charts/node-cache"`) {
		t.Errorf("the provenance of the chart: %s", p)
	}
	helm := filepath.Join(out, "helm")
	goBuild := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", helm, ".")
	goBuild.Dir, goBuild.Env = filepath.Join(repository, "test", "helm"), append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := goBuild.CombinedOutput(); err != nil {
		t.Fatalf("building Helm: %v\n%s", err, text)
	}
	for kind, start := range registries() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			repository := start(t) + "/team/charts/node-cache"
			if got, want := mustRun(t, "push", filepath.Join(out, "node-cache-chart-v1.2.3.oci.tar"), repository+":1.2.3"), repository+":1.2.3@"+digest; got != want {
				t.Errorf("printed %s, want %s", got, want)
			}
			in, err := name.NewRepository(repository)
			if err != nil {
				t.Fatal(err)
			}
			checkStatements(t, in, digest, public)
			folder := t.TempDir()
			pull := exec.CommandContext(t.Context(), helm, "pull", "oci://"+repository, "--version", "1.2.3", "--plain-http", "-d", folder)
			pull.Env = append(os.Environ(), "HELM_CACHE_HOME="+folder, "HELM_CONFIG_HOME="+folder, "HELM_DATA_HOME="+folder)
			if text, err := pull.CombinedOutput(); err != nil || !bytes.Contains(text, []byte(digest)) {
				t.Fatalf("%v: %s, want digest %s", err, text, digest)
			}
			if !bytes.Equal(mustRead(t, filepath.Join(folder, file)), files[file].data) {
				t.Error("Helm pulls another file than the release has")
			}
		})
	}
}
