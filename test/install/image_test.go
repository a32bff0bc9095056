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
)

// agentImage is what the manifests name.
const agentImage = "ghcr.io/nodecache/node-cache:v0.7.0"

// images is the folder of what image makes; TestMain makes and removes it.
var images string

// iptablesVariant says whether the image of component iptables is made, of packages of Debian's.
var iptablesVariant = os.Getenv("IMAGE_IPTABLES") != ""

// image is the archive of the agent's image as make release makes it, once for all tests. What a release has besides is in its folder.
var image = sync.OnceValues(func() (string, error) {
	tool := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(images, "image"), ".")
	tool.Dir = filepath.Join(repository, "hack", "image")
	if out, err := tool.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the image's tool: %w\n%s", err, out)
	}
	name, version, _ := strings.Cut(agentImage, ":")
	release := exec.Command(tool.Args[4], "-root", "../..", "-out", images, "-name", name, "-version", version, "-release", fmt.Sprintf("-iptables=%t", iptablesVariant))
	release.Dir = tool.Dir
	if out, err := release.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making the image: %w\n%s", err, out)
	}
	return archiveOf(agentImage), nil
})

// archiveOf is where the archive of an image is.
func archiveOf(image string) string {
	_, tag, _ := strings.Cut(image, ":")
	return filepath.Join(images, "node-cache-"+tag+".oci.tar")
}

// loadIPTables gives both nodes the image of component iptables. It skips the test where packages are not to be fetched.
func (b *harness) loadIPTables(t *testing.T) {
	t.Helper()
	if !iptablesVariant {
		t.Skip("fetches packages from Debian: set IMAGE_IPTABLES")
	}
	for _, n := range b.Nodes {
		if err := n.LoadImage(t.Context(), archiveOf(agentImage+"-iptables")); err != nil {
			t.Fatal(err)
		}
	}
}
