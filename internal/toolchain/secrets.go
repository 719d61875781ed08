package toolchain

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// credentialFiles are names of files in which tools keep what they log in with.
// Installs have some of them: npm's, pip's and conda's settings of the whole
// install, for example, hold the tokens of private registries.
var credentialFiles = []string{
	".npmrc", "npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", "pip.conf", ".pip.conf", "pip.ini", ".condarc", "condarc", "uv.toml", "poetry.toml",
	"credentials", "credentials.toml", "credentials.json", "credentials.tfrc.json", "auth.json", "auth.toml", "hosts.yml", "token", "tokens",
	".netrc", "_netrc", ".git-credentials", ".gitconfig", "gitconfig", ".dockercfg", ".env", ".envrc", ".pgpass", ".my.cnf", ".s3cfg", ".boto",
	"application_default_credentials.json", ".vault-token", ".terraformrc", "kubeconfig", "settings.xml", "settings-security.xml",
	"gradle.properties", "init.gradle", "nuget.config", "id_rsa", "id_ed25519", "id_ecdsa", "id_dsa",
}

// deeper are directories of an install in which such files lie further down.
var deeper = []string{"etc", "conf", "config", "etc/conda", "lib/node_modules/npm", "libexec/lib/node_modules/npm"}

// versions are where a version manager keeps its installs, and settings what an
// interpreter reads in each.
var (
	versions = []string{"versions/*", "installs/*/*", "tools/image/*/*", "venvs/*"}
	settings = []string{"pip.conf", "etc/pip.conf", ".npmrc", "etc/npmrc", "lib/node_modules/npm/.npmrc", ".condarc"}
)

// secrets lists the credential files of an install, relative to it. They are
// looked for at its top, where tools are known to keep them, and in each install
// of a version manager; nowhere else, since installs are large.
func secrets(dir string) []string {
	var out []string
	for _, rel := range append([]string{"."}, deeper...) {
		for _, e := range readDir(path.Join(dir, rel)) {
			if !e.IsDir() && slices.Contains(credentialFiles, strings.ToLower(e.Name())) {
				out = append(out, path.Join(rel, e.Name()))
			}
		}
	}
	for _, pattern := range versions {
		installs, _ := filepath.Glob(path.Join(dir, pattern)) // the patterns are well formed
		for _, install := range installs {
			for _, rel := range settings {
				at := path.Join(install, rel)
				if st, err := os.Lstat(at); err == nil && !st.IsDir() {
					out = append(out, strings.TrimPrefix(at, dir+"/"))
				}
			}
		}
	}
	return out
}
