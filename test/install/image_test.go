// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// agentImage is what the manifests name.
const agentImage = "ghcr.io/nodecache/node-cache:v0.7.0"

// images is the folder of what image makes; TestMain makes and removes it.
var images string

// image is the archive of the agent's image as make image makes it, once for all tests. Around a static binary that is
// there already, if the environment names one, it makes the simplest.
var image = sync.OnceValues(func() (string, error) {
	name, version, _ := strings.Cut(agentImage, ":")
	archive := filepath.Join(images, "node-cache-"+version+".oci.tar")
	if program := os.Getenv(proctest.BinaryEnv); program != "" {
		files := map[string]string{"node-cache": program}
		return archive, kubenode.Image{Name: agentImage, Files: files, Entrypoint: []string{"/node-cache"}}.Archive(archive)
	}
	tool := exec.Command("go", "run", "-buildvcs=false", ".", "-root", "../..", "-out", images, "-name", name, "-version", version)
	tool.Dir = filepath.Join(repository, "hack", "image")
	if out, err := tool.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making the image: %w\n%s", err, out)
	}
	return archive, nil
})
