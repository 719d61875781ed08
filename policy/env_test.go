package policy

import "testing"

func TestSecretName(t *testing.T) {
	for name, want := range map[string]bool{
		"AWS_REGION": true, "AWS_SECRET_ACCESS_KEY": true, "GITHUB_TOKEN": true, "OPENAI_API_KEY": true, "CLIENT_SECRET": true,
		"SSH_AUTH_SOCK": true, "aws_session_token": true, "npm_config_token": true, "DB_PASSWORD": true, "TOKEN": true, "PASSWORD": true,
		"GOOGLE_APPLICATION_CREDENTIALS": true, "KUBECONFIG": true, "DATABASE_URL": true, "SECRET_SANTA": true, "KEY": true, "GITLAB_PAT": true,
		"LANG": false, "TERM": false, "PYTHONUNBUFFERED": false, "PATH": false, "KEYBOARD": false, "TOKENIZERS_PARALLELISM": false,
		"COMPASS": false, "PATTERN": false, "MONKEY": false, "SSH_CONNECTION": false, "PWD": false, "": false,
	} {
		if got := SecretName(name); got != want {
			t.Errorf("SecretName(%q) = %v", name, got)
		}
	}
}

func TestPassesEnv(t *testing.T) {
	p := &Policy{EnvAllow: []Text{{Value: "LANG"}, {Value: "APP_*"}, {Value: "GITHUB_TOKEN"}}}
	for name, want := range map[string]bool{
		"LANG": true, "LANGUAGE": false, "APP_": true, "APP_MODE": true, "APP": false, "XAPP_MODE": false,
		"APP_TOKEN": false, "GITHUB_TOKEN": false, "app_mode": false, "": false,
	} {
		if got := p.PassesEnv(name); got != want {
			t.Errorf("PassesEnv(%q) = %v", name, got)
		}
	}
	p.Unsafe = []Text{{Value: "credential-env"}}
	for _, name := range []string{"APP_TOKEN", "GITHUB_TOKEN"} {
		if !p.PassesEnv(name) {
			t.Errorf("%s does not pass with credential-env", name)
		}
	}
}
