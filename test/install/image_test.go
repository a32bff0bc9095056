// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// agentImage is what the manifests name.
const agentImage = "ghcr.io/nodecache/node-cache:v0.7.0"

// images is the folder of what image makes; TestMain makes and removes it.
var images string

// image is the archive of the agent's image as make release makes it with what a release has besides, once for all tests.
var image = sync.OnceValues(func() (string, error) { return makeImage("-release") })

// imageIPTables is the one for component iptables, made of packages of Debian's besides.
var imageIPTables = sync.OnceValues(func() (string, error) { return makeImage("-iptables") })

// makeImage makes an image by the project's own tool.
func makeImage(flags ...string) (string, error) {
	name, version, _ := strings.Cut(agentImage, ":")
	args := append([]string{"run", "-buildvcs=false", ".", "-root", "../..", "-out", images, "-name", name, "-version", version}, flags...)
	tool := exec.Command("go", args...)
	tool.Dir = filepath.Join(repository, "hack", "image")
	if out, err := tool.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making the image: %w\n%s", err, out)
	}
	return archiveOf(agentImage + strings.TrimPrefix(strings.Join(flags, ""), "-release")), nil
}

// push sends the image to the cluster's registry, by what make push runs.
func (b *harness) push(t *testing.T) {
	t.Helper()
	archive, err := image()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "image")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, ".")
	build.Dir = filepath.Join(repository, "hack", "image")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.runShell(t, program+" push "+archive+" "+kubenode.Registry+strings.TrimPrefix(agentImage, "ghcr.io"))
}

// archiveOf is where the archive of an image is.
func archiveOf(image string) string {
	_, tag, _ := strings.Cut(image, ":")
	return filepath.Join(images, "node-cache-"+tag+".oci.tar")
}

// loadIPTables gives both nodes the image of component iptables. It skips the test where packages are not to be fetched.
func (b *harness) loadIPTables(t *testing.T) {
	t.Helper()
	if os.Getenv("IMAGE_IPTABLES") == "" {
		t.Skip("fetches packages from Debian: set IMAGE_IPTABLES")
	}
	began := time.Now()
	archive, err := imageIPTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range b.Nodes {
		if err := n.LoadImage(t.Context(), archive); err != nil {
			t.Fatal(err)
		}
	}
	proctest.Figure(t, "both nodes have the image with iptables after %s", since(began))
}
