// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"

	"github.com/nodecache/node-cache/pkg/config"
)

func TestExit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode     string
		excluded bool
		set      string
		want     string
	}{
		{config.ModeLinkLocal, false, config.ExitAuto, config.ExitFallback},
		{config.ModeLinkLocal, false, config.ExitRemove, config.ExitRemove},
		{config.ModeLinkLocal, false, config.ExitFallback, config.ExitFallback},
		{config.ModeTransparent, false, config.ExitAuto, config.ExitRemove},
		{config.ModeTransparent, false, config.ExitRemove, config.ExitRemove},
		{config.ModeTransparent, true, config.ExitAuto, config.ExitFallback},
		{config.ModeTransparent, true, config.ExitRemove, config.ExitRemove},
	} {
		if got := (config.Intercept{Mode: tt.mode, OnExit: tt.set, ServiceExcluded: tt.excluded}).Exit(); got != tt.want {
			t.Errorf("mode %s, onExit %s: %s at the end, want %s", tt.mode, tt.set, got, tt.want)
		}
	}
}
