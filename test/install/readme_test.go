// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/kubenode"
)

// The README's steps, which the test takes in their order.
const (
	stepImage = iota
	stepAgents
	stepTry
	stepKubelet
	stepTune
	stepKubeletBack
	stepRemove
	steps
)

// readme returns the commands of the README's section about installing, one list for each of its blocks.
func readme(t *testing.T) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Install\n")
	if !found {
		t.Fatal("the README has no section about installing")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := commands(section)
	if len(blocks) != steps {
		t.Fatalf("the README's section about installing has %d blocks of commands, and this test knows %d", len(blocks), steps)
	}
	return blocks
}

// commands returns the commands of a text, one list for each of its blocks.
func commands(text string) (blocks [][]string) {
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "```console" {
			blocks, inside = append(blocks, nil), true
			continue
		}
		inside = inside && line != "```"
		if !inside {
			continue
		}
		block := &blocks[len(blocks)-1]
		switch {
		case strings.HasPrefix(line, "$ "), strings.HasPrefix(line, "node# "):
			*block = append(*block, line)
		case len(*block) > 0 && strings.HasSuffix((*block)[len(*block)-1], "|"): // the rest of a command
			(*block)[len(*block)-1] += "\n" + line
		}
	}
	return blocks
}

// pushImage builds the image and pushes it to the cluster's registry, by the README's commands with its address. What they write into dist
// is removed.
func (b *harness) pushImage(t *testing.T, block []string) {
	t.Helper()
	_, tag, _ := strings.Cut(agentImage, ":")
	if was, _ := filepath.Glob(filepath.Join(repository, "dist", "*"+tag+"*")); len(was) == 0 {
		t.Cleanup(func() {
			made, _ := filepath.Glob(filepath.Join(repository, "dist", "*"+tag+"*"))
			for _, file := range made {
				_ = os.Remove(file)
			}
		})
	}
	registry := strings.NewReplacer("REGISTRY=registry.example", "REGISTRY="+kubenode.Registry+"/nodecache")
	for _, line := range block {
		// The control machine's PATH has no go command.
		b.runShell(t, "PATH="+os.Getenv("PATH")+" "+registry.Replace(strings.TrimPrefix(line, "$ ")))
	}
}

// fromRelease has commands use the files of a release, as the README says.
func fromRelease(block []string) []string {
	files := strings.NewReplacer("-k daemonset/base", "-f "+filepath.Join(images, "install.yaml"), "-k daemonset/uninstall", "-f "+filepath.Join(images, "uninstall.yaml"))
	var changed []string
	for _, line := range block {
		changed = append(changed, files.Replace(line))
	}
	return changed
}

// runBlock runs the commands of a block as they stand: those of a node on both. Variables are added to their environment. It
// returns what those of the control machine wrote.
func (b *harness) runBlock(t *testing.T, block []string, env ...string) (written string) {
	t.Helper()
	for _, line := range block {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			written += b.runShell(t, command, env...)
			continue
		}
		command := strings.TrimPrefix(line, "node# ")
		for _, n := range b.Nodes {
			if out, err := n.Output(t.Context(), "sh", "-c", command); err != nil {
				t.Fatalf("%s# %s: %v\n%s", n.Name, command, err, out)
			}
		}
		t.Logf("on both nodes: %s", command)
	}
	return written
}
