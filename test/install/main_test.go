// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"testing"

	"github.com/nodecache/node-cache/internal/kubenode"
)

func TestMain(m *testing.M) {
	if status, mine := kubenode.Main(); mine {
		os.Exit(status)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if images, err = os.MkdirTemp("", "node-cache-images-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(images) }()
	return m.Run()
}
