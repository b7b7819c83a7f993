# sets ASCEND_HOME_PATH and others
